# SPDX-License-Identifier: Apache-2.0
"""Remove the nodes that LXD or Incus has made for containers' devices (device_utils_unix.go): character nodes
``unix.DEVICE.PATH`` in a directory ``devices/CONTAINER`` of the daemon's own, where ``-`` is ``--`` and ``/`` is ``-``,
each shown in the container at its path."""

import contextlib
import os
import stat
from collections.abc import Collection

from containerhost import charnodes
from containerhost.errors import HostActionFailed
from containerhost.process.processes import real_user

HOMES = {"lxd": ("LXD_DIR", "/var/lib/lxd"), "incusd": ("INCUS_DIR", "/var/lib/incus")}
KIND = "unix."


def forget(server: int, container: str, pid: int, known: Collection[str]) -> int:
    """Take the character nodes of devices that the daemon does not know of from a container, and remove them. Block
    nodes stay: whoever would remove one must see to what of the container uses it.

    :param server: the daemon's process
    :param container: as the daemon calls its directory
    :param pid: the container's first process
    :param known: names of the devices it knows of; what they have too stays
    :returns: how many were removed
    """
    directory = f"{home(server)}/devices/{container}"
    nodes = {name: parted(name) for name in listed(directory) if name.startswith(KIND)}
    kept = {path for device, path in nodes.values() if device in known}
    stale = [(os.path.join(directory, name), path) for name, (device, path) in nodes.items() if device not in known]
    removed = 0
    for file, path in stale:
        status = os.stat(file, follow_symlinks=False)
        if not stat.S_ISCHR(status.st_mode):
            continue
        if path not in kept:
            charnodes.take(pid, path, (os.major(status.st_rdev), os.minor(status.st_rdev)))
        os.unlink(file)
        removed += 1
    return removed


def listed(directory: str) -> list[str]:
    with contextlib.suppress(FileNotFoundError):  # the container had no device yet
        return sorted(os.listdir(directory))
    return []


def parted(name: str) -> tuple[str, str]:
    """Split a node's name into the device's name and the path in the container."""
    device, _, path = name.removeprefix(KIND).partition(".")
    return decoded(device), f"/{decoded(path)}"


def decoded(text: str) -> str:
    return "-".join(part.replace("-", "/") for part in text.split("--"))


def home(server: int) -> str:
    """Return the daemon's directory, as this process sees it: a daemon from a snap has mounts of its own.

    :raises HostActionFailed: the process is no such daemon
    """
    try:
        with open(f"/proc/{server}/comm", encoding="utf-8") as comm, open(f"/proc/{server}/environ", "rb") as environ:
            variable, default = HOMES[comm.read().strip()]
            found = dict(pair.split("=", 1) for pair in os.fsdecode(environ.read()).split("\0") if "=" in pair)
        owner = real_user(server)
    except (OSError, KeyError) as error:
        raise HostActionFailed(f"process {server} is not LXD or Incus") from error
    if owner != 0:
        raise HostActionFailed(f"process {server} is not root's, so it is no daemon of containers")
    return f"/proc/{server}/root{found.get(variable, default).rstrip('/')}"
