# SPDX-License-Identifier: Apache-2.0
"""Fence, restore and remove the nodes that LXD or Incus created for containers' devices (device_utils_unix.go).

They are character nodes ``unix.DEVICE.PATH`` in the daemon's directory ``devices/CONTAINER``, where ``-`` is ``--``
and ``/`` is ``-``. Each is mounted in the container at its path and belongs to the container's root.
"""

import contextlib
import os
import re
import stat
import time
from collections.abc import Collection, Iterator, Mapping

from containerhost.errors import HostActionFailed
from containerhost.linux import charnodes, controlgroups
from containerhost.linux.files import Directory, closing, write_attribute
from containerhost.linux.process.processes import real_user
from containerhost.linux.sysfs import Host

Number = tuple[int, int]

HOMES = {"lxd": ("LXD_DIR", "/var/lib/lxd"), "incusd": ("INCUS_DIR", "/var/lib/incus")}
KIND = "unix."
KEPT = f"{KIND}kept--by--containerhost."  # prefix of the number of the inode
DENIED = f"{KIND}denied--by--containerhost.{{}}.{{}}"  # an empty file for each device that is denied
CGROUPS = "/sys/fs/cgroup/devices"
PAYLOAD = re.compile(r"/(?:[^/]+/)*?lxc\.payload\.[^/]+")  # the tenant names nested groups
WALK_TIMEOUT = 10.0  # s


def fence(server: int, container: str, pid: int, leaving: Collection[str]) -> None:
    """Block opening of the character nodes of devices that a running container is about to lose. Idempotent.

    The daemon unlinks its file, but a bind mount that the tenant made keeps the inode. A node that several devices
    have is one inode, the file of the device that came first: while others need it, an additional link keeps it
    reachable. The daemon removes that, and the marks of denied devices, with its own files when the container stops.

    :param server: the daemon's process
    :param container: the daemon's name for its directory
    :param pid: the container's first process
    :raises HostActionFailed: a node can still be opened
    """
    with opened(server, container) as directory:
        if directory is None:
            raise HostActionFailed(f"the daemon has no device nodes of container {container} in its directory, so none "
                                   "can be fenced: stop the container, then try again")
        nodes = numbers(directory)
        staying = {number for name, number in nodes.items() if owner(name) not in (None, *leaving)}
        for name, number in nodes.items():
            if number not in staying:
                with _node(directory, name) as node:
                    os.chown(node, 0, 0)  # before the mode, which the owner may change
                    os.chmod(node, 0)
            elif owner(name) in leaving and is_containers(status := directory.stat(name)):  # else it is not shown
                with contextlib.suppress(FileExistsError):
                    os.link(name, f"{KEPT}{status.st_ino}", src_dir_fd=directory.fd, dst_dir_fd=directory.fd,
                            follow_symlinks=False)
        for number in set(nodes.values()) - staying:
            mark = DENIED.format(*number)
            with closing(directory.open(mark, os.O_WRONLY | os.O_CREAT)):
                if not permit(pid, number, False):
                    _unlink(directory, mark)


def restore(server: int, container: str, pid: int, modes: Mapping[str, int]) -> None:
    """Permit a container to open the nodes of its devices, whether :func:`fence` was called for them or not.

    :param modes: of the nodes, by the name of the device
    :raises HostActionFailed: a node cannot be restored
    """
    with opened(server, container) as directory:
        if directory is None:
            return
        nodes = numbers(directory)
        own = {number: modes[device] for name, number in nodes.items() if (device := owner(name) or "") in modes}
        fenced = {name: number for name, number in nodes.items() if number in own and is_fenced(directory.stat(name))}
        back = {number for name, number in fenced.items() if owner(name)}
        for name, number in fenced.items():
            if number not in back:  # the daemon created the node again: this link is unused
                _unlink(directory, name)
                continue
            with _node(directory, name) as node:
                os.chown(node, *charnodes.root_of(pid))
                os.chmod(node, own[number])
        for number in own:
            if directory.has(mark := DENIED.format(*number)):
                permit(pid, number, True)
                _unlink(directory, mark)


def forget(server: int, container: str, pid: int, known: Collection[str]) -> int:
    """Remove character nodes of devices that the daemon does not know from a container.

    Block nodes stay: the caller must check that no process uses them.

    :param server: the daemon's process
    :param container: the daemon's name for its directory
    :param pid: the container's first process
    :param known: names of the known devices; nodes that they share stay
    """
    with opened(server, container) as directory:
        if directory is None:
            return 0
        nodes = {name: (*parted(name), number) for name, number in numbers(directory).items() if owner(name)}
        kept = {path for device, path, _ in nodes.values() if device in known}
        stale = {name: node for name, node in nodes.items() if node[0] not in known}
        if stale:
            fence(server, container, pid, {device for device, _, _ in stale.values()})
        for name, (_, path, number) in stale.items():
            if path not in kept:
                charnodes.remove_from(pid, path, number)
            _unlink(directory, name)
    return len(stale)


def _unlink(directory: Directory, name: str) -> None:
    """Remove a file, without a sync: what it says of a running container ends with the host's boot. Idempotent."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory.fd)


def owner(name: str) -> str | None:
    """Return the device for which a node was created; None for an additional link."""
    return None if name.startswith(KEPT) else parted(name)[0]


def is_containers(status: os.stat_result) -> bool:
    return status.st_uid != 0


def is_fenced(status: os.stat_result) -> bool:
    return (status.st_uid, stat.S_IMODE(status.st_mode)) == (0, 0)


def numbers(directory: Directory) -> dict[str, Number]:
    """Return the device numbers of the character nodes by file name."""
    found = {name: number_of(directory.stat(name)) for name in directory.names() if name.startswith(KIND)}
    return {name: number for name, number in found.items() if number is not None}


def number_of(status: os.stat_result) -> Number | None:
    return (os.major(status.st_rdev), os.minor(status.st_rdev)) if stat.S_ISCHR(status.st_mode) else None


@contextlib.contextmanager
def opened(server: int, container: str) -> Iterator[Directory | None]:
    """Open the directory of a container's nodes; None if it has had no device yet.

    :raises HostActionFailed: as the block does, or the kernel refuses
    """
    path = f"{home(server)}/devices/{container}"
    try:
        with contextlib.ExitStack() as stack:
            directory = None
            with contextlib.suppress(FileNotFoundError):
                directory = stack.enter_context(Directory(path))
            yield directory
    except OSError as error:
        raise HostActionFailed(f"the device nodes in {path} cannot be changed: {error.strerror}") from error


@contextlib.contextmanager
def _node(directory: Directory, name: str) -> Iterator[str]:
    """Yield a path of the node itself, following no link."""
    with closing(os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory.fd)) as fd:
        if number_of(os.fstat(fd)) is None:
            raise HostActionFailed(f"{directory.path / name} is no longer the same character node")
        yield f"/proc/self/fd/{fd}"


def permit(pid: int, number: Number, allowed: bool) -> bool:
    """Permit or deny a device to the processes of a container, with control groups of version 1.

    Source: Documentation/admin-guide/cgroup-v1/devices.rst. The daemon does that for privileged containers only,
    with version 2, too. An unprivileged one has no program of version 2, so only the node's mode counts, as it does
    where this process lacks CAP_SYS_ADMIN to change the rules.

    :returns: whether that was changed
    :raises HostActionFailed: the kernel refuses to permit a denied device, or fails
    """
    payload = PAYLOAD.match(controlgroups.of(pid, Host()).get("devices", ""))
    if payload is None:
        return False
    top, end = f"{CGROUPS}{payload[0]}", time.monotonic() + WALK_TIMEOUT
    # The kernel propagates denials to nested groups, but not permissions.
    for group, before in controlgroups.walk(top) if allowed else [(top, True)]:
        if not before:
            continue
        if time.monotonic() > end:
            raise HostActionFailed(f"container {os.path.basename(top)} has too many control groups to permit it a "
                                   f"device within {WALK_TIMEOUT:g} s: stop it, then try again")
        try:
            write_attribute(f"{group}/devices.{'allow' if allowed else 'deny'}", f"c {number[0]}:{number[1]} rwm")
        except OSError as error:
            if isinstance(error, PermissionError) and not allowed:
                return False
            if os.path.exists(group):
                raise HostActionFailed(f"control group {group} cannot be {'permitted' if allowed else 'denied'} device "
                                       f"{number[0]}:{number[1]}: {error.strerror}") from error
    return True


def parted(name: str) -> tuple[str, str]:
    """Split a node's name into the device's name and the path in the container."""
    device, _, path = name.removeprefix(KIND).partition(".")
    return decoded(device), f"/{decoded(path)}"


def decoded(text: str) -> str:
    return "-".join(part.replace("-", "/") for part in text.split("--"))


def home(server: int) -> str:
    """Return the daemon's directory as this process sees it: a daemon from a snap has its own mounts.

    :raises HostActionFailed: the process is not such a daemon
    """
    try:
        with open(f"/proc/{server}/comm", encoding="utf-8") as comm, open(f"/proc/{server}/environ", "rb") as environ:
            variable, default = HOMES[comm.read().strip()]
            found = dict(pair.split("=", 1) for pair in os.fsdecode(environ.read()).split("\0") if "=" in pair)
        owner = real_user(server)
    except (OSError, KeyError) as error:
        raise HostActionFailed(f"process {server} is not LXD or Incus") from error
    if owner != 0:
        raise HostActionFailed(f"process {server} is not root's, so it is not a daemon of containers")
    return f"/proc/{server}/root{found.get(variable, default).rstrip('/')}"
