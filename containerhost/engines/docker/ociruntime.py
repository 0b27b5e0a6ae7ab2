# SPDX-License-Identifier: Apache-2.0
"""Run as Docker's OCI runtime for this project's containers: runc, plus the devices of the container's record.

Docker fixes a container's devices at its creation. The runtime adds the recorded ones at each start, before the
first program runs, whoever starts it; and its interfaces are back on the host by the time Docker reports it as
stopped. That concerns ``create`` and ``delete``, for which the script ``containerhost-docker-runtime`` calls this
module; it passes other commands to runc.

Docker waits for each of these processes. So few modules are loaded at first, and those for interfaces while runc
runs.

The engine may change a container while others start it, so one lock covers changes of the record and of the
container. Under it the engine searches for the container's processes itself, because Docker reports them only later.
"""

import contextlib
import errno
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from containerhost.engines.docker import recordfiles
from containerhost.linux import hugepages
from containerhost.linux.files import closing
from containerhost.linux.lock import FileLock
from containerhost.linux.sysfs import Host

RUNC = "runc"
LOCK_TIMEOUT = 60.0  # s; a holder changes a few nodes or interfaces

# The container is the boundary: every user in it may use its devices.
NODE_MODE = 0o666

# An anonymous volume of Docker, below its data-root.
VOLUME = re.compile(r"/.*/volumes/[0-9a-f]{64}/_data")
# A file that Docker keeps for each container below its data-root, and rewrites before each start.
HOST_FILE = re.compile(r"/.*/containers/[0-9a-f]{64}/(?:hosts|hostname|resolv\.conf)")
HOST_FILE_LIMIT = 1 << 20  # bytes
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

PERMIT, REFUSE = "SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO"  # actions of a rule in a seccomp profile
# System calls that read and write another process's memory, as ptrace(2) does.
PROCESS_MEMORY = frozenset({"process_vm_readv", "process_vm_writev"})

# The kernel lists no file that is registered in an io_uring whose descriptor is closed
# (IORING_SETUP_REGISTERED_FD_ONLY, io_uring_setup(2)), so open devices could not be found. Docker's own profile denies
# io_uring since 25.
IO_URING = frozenset({"io_uring_setup", "io_uring_enter", "io_uring_register"})

# Global options of runc that take a value.
VALUED = ("--root", "--log", "--log-format", "--criu", "--rootless")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``containerhost-ociruntime [--records DIRECTORY] RUNC-ARGUMENTS``."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    records = words[1] if words[:1] == ["--records"] else recordfiles.DIRECTORY
    if words[:1] == ["--records"]:
        words = words[2:]
    try:
        act = {"create": create, "delete": delete}.get(command_of(words) or "")
        return act(records, words) if act else runc(words)
    except Exception as error:
        return failed(words, str(error) or repr(error))


def lock(records: str, container: str) -> FileLock:
    return FileLock(Path(recordfiles.lock(records, container)), LOCK_TIMEOUT)


def create(records: str, words: Sequence[str]) -> int:
    with lock(records, words[-1]).held():
        return create_alone(records, words)


def create_alone(records: str, words: Sequence[str]) -> int:
    container = words[-1]
    nodes = recordfiles.nodes(records, container)
    if os.path.exists(recordfiles.namespace(records, container)):
        bring_back(records, container)  # left by a killed runtime
    hook = hook_for(recordfiles.libraries(records, container))
    mapped = rewrite(os.path.join(value_of(words, "--bundle") or ".", "config.json"), nodes, hook,
                     recordfiles.volumes_in_root(records, container))
    try:
        status = runc(words, load)
    except BaseException:
        runc([*common(words), "delete", "--force", container])
        raise
    if status:
        return status

    from containerhost.rollback import Rollback  # noqa: PLC0415  (a start waits; it was loaded beside runc)
    with Rollback(f"creation of container {container}") as undo:
        undo.on_error("its creation", runc, [*common(words), "delete", "--force", container])
        undo.on_error("its interfaces", bring_back, records, container)
        with open(value_of(words, "--pid-file") or "", encoding="ascii") as file:
            pid = int(file.read())
        if mapped:
            make(pid, nodes)
        move_in(records, container, pid)
    return 0


def make(pid: int, nodes: Sequence[tuple[str, int, int]]) -> None:
    """Create the nodes in a container with a user namespace.

    There runc bind-mounts the host's nodes, which may be open to the host's groups only."""
    from containerhost.linux import charnodes  # noqa: PLC0415  (a start waits, and few hosts map users)
    for path, major, minor in nodes:
        charnodes.make(pid, path, (major, minor), NODE_MODE)


def delete(records: str, words: Sequence[str]) -> int:
    container = words[-1]
    if not os.path.exists(recordfiles.namespace(records, container)):
        return runc(words)
    with lock(records, container).held():
        status = runc(words)
        if status == 0 or "--force" in words:
            bring_back(records, container)
        return status


def load() -> None:
    """Load the modules that are needed after runc has ended."""
    from containerhost import rollback  # noqa: F401, PLC0415  (a start waits; it loads beside runc)
    from containerhost.engines.docker import netns_move  # noqa: F401, PLC0415  (likewise)


def move_in(records: str, container: str, pid: int) -> None:
    from containerhost.engines.docker import netns_move  # noqa: PLC0415  (a start waits; it loads beside runc)
    netns_move.move_in(records, container, pid)


def bring_back(records: str, container: str) -> None:
    from containerhost.engines.docker import netns_move  # noqa: PLC0415  (a start waits; it loads beside runc)
    netns_move.bring_back(records, container)


def hook_for(capabilities: Sequence[str]) -> dict[str, Any] | None:
    """Return the hook for the libraries of the GPU's driver; None if none are requested."""
    if not capabilities:
        return None
    from containerhost import vendors  # noqa: PLC0415  (a start waits, and few containers have them)
    return next(filter(None, (vendor.library_hook(capabilities) for vendor in vendors.load())), None)


def rewrite(path: str, nodes: Sequence[tuple[str, int, int]], hook: dict[str, Any] | None,
            volumes_in_root: bool = False) -> bool:
    """Rewrite the container's OCI configuration.

    :returns: whether the container has a user namespace, so that its nodes must be created later
    """
    with open(path, encoding="utf-8") as source:
        config = json.load(source)
    mapped = has_own_users(config)
    for mount in mounts_of(config, HOST_FILE):
        copy_file(mount["source"], root_of(path, config), mount["destination"], owner_of_root(config))
    config = without_mounts(config, HOST_FILE)
    if volumes_in_root:
        for mount in mounts_of(config, VOLUME):
            make_directory(root_of(path, config), mount["destination"], owner_of_root(config))
        config = without_mounts(config, VOLUME)
    with open(path, "w", encoding="utf-8") as target:
        config = without_io_uring(with_process_memory(with_hook(with_nodes(config, nodes), hook)))
        json.dump(without_huge_pages(config, hugepages.limitable(Host())), target)
    return mapped


def has_own_users(config: dict[str, Any]) -> bool:
    return any(namespace["type"] == "user" for namespace in config["linux"].get("namespaces") or ())


def root_of(path: str, config: dict[str, Any]) -> str:
    """Return the path of the container's root."""
    return os.path.join(os.path.dirname(path), config["root"]["path"])


def mounts_of(config: dict[str, Any], source: re.Pattern[str]) -> list[dict[str, Any]]:
    """Return the mounts from this path of the host. Pure."""
    return [mount for mount in config.get("mounts") or () if source.fullmatch(str(mount.get("source") or ""))]


def without_mounts(config: dict[str, Any], source: re.Pattern[str]) -> dict[str, Any]:
    """Return a configuration without the mounts from this path of the host. Pure.

    No quota limits an anonymous volume, which Docker creates if an image declares VOLUME, or a file that Docker
    keeps for the container; nor does a commit or an export contain it; so it belongs in the root.
    """
    mounts = config.get("mounts") or ()
    found = mounts_of(config, source)
    return config | {"mounts": [mount for mount in mounts if mount not in found]} if found else config


def owner_of_root(config: dict[str, Any]) -> tuple[int, int]:
    """Return user and group on the host of the container's root. Pure."""
    user, group = (next((item["hostID"] for item in config["linux"].get(key) or () if item["containerID"] == 0), 0)
                   for key in ("uidMappings", "gidMappings"))
    return user, group


def make_directory(root: str, path: str, owner: tuple[int, int]) -> None:
    """Create a directory below a root that a tenant can change, as runc would for a mount.

    If that is impossible, because the root is full or has something else there, the container starts without it.
    """
    try:
        os.close(opened_directory(root, path, owner))
    except OSError as error:
        not_made(path, error)


def opened_directory(root: str, path: str, owner: tuple[int, int]) -> int:
    """Open a directory below a root that a tenant can change, creating missing components.

    :returns: an fd, which the caller closes
    :raises NotADirectoryError: a component is a link or no directory
    """
    below = os.open(root, DIRECTORY)
    for step in path.strip("/").split("/"):
        with closing(below):
            with contextlib.suppress(FileExistsError):
                os.mkdir(step, 0o755, dir_fd=below)
                os.chown(step, *owner, dir_fd=below, follow_symlinks=False)
            below = os.open(step, DIRECTORY, dir_fd=below)
    return below


def copy_file(source: str, root: str, path: str, owner: tuple[int, int]) -> None:
    """Copy a small file of the host into a root that a tenant can change, replacing a file or link.

    If that is impossible, because the root is full or has a directory there, the container starts without it.
    """
    parent, name = os.path.split(path)
    try:
        with open(source, "rb") as file:
            content = file.read(HOST_FILE_LIMIT)
        with closing(opened_directory(root, parent, owner)) as directory:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=directory)
            new = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=directory)
            with open(new, "wb") as file:
                os.fchown(new, *owner)
                os.fchmod(new, 0o644)
                file.write(content)
    except OSError as error:
        not_made(path, error)


def not_made(path: str, error: OSError) -> None:
    print(f"{path} is not as Docker would have it: {error.strerror}", file=sys.stderr)  # the container's log


def with_nodes(config: dict[str, Any], nodes: Sequence[tuple[str, int, int]]) -> dict[str, Any]:
    """Return an OCI runtime configuration (config-linux.md, "Devices") that permits and creates these nodes. Pure.

    It does not create them for a container with a user namespace."""
    linux = config["linux"]
    resources = linux.get("resources") or {}
    return config | {"linux": linux | {
        "devices": [*(linux.get("devices") or ()), *(
            {"path": path, "type": "c", "major": major, "minor": minor, "fileMode": NODE_MODE, "uid": 0, "gid": 0}
            for path, major, minor in (() if has_own_users(config) else nodes))],
        "resources": resources | {"devices": [*(resources.get("devices") or ()), *(
            {"allow": True, "type": "c", "major": major, "minor": minor, "access": "rwm"}
            for _, major, minor in nodes)]}}}


def with_hook(config: dict[str, Any], hook: dict[str, Any] | None) -> dict[str, Any]:
    """Return the configuration with a further hook that runs before the first program. Pure."""
    if hook is None:
        return config
    hooks = config.get("hooks") or {}
    return config | {"hooks": hooks | {"prestart": [*(hooks.get("prestart") or ()), hook]}}


def with_process_memory(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration with a seccomp profile that permits PROCESS_MEMORY if it permits ptrace. Pure.

    Open MPI and UCX copy large messages between the processes of a host with these calls. The kernel checks them as
    it checks PTRACE_ATTACH (process_vm_readv(2)), so they reach nothing that ptrace does not reach. Docker 20.10
    permits only ptrace, on kernels since 4.8; later releases permit all three. A profile that names one of the two
    is left unchanged in that.
    """
    seccomp = config["linux"].get("seccomp") or {}
    rules = seccomp.get("syscalls") or []
    missing = sorted(PROCESS_MEMORY.difference(*(rule["names"] for rule in rules)))
    if not missing or not any(permits(rule, "ptrace") for rule in rules):
        return config
    added = {"names": missing, "action": PERMIT}
    return config | {"linux": config["linux"] | {"seccomp": seccomp | {"syscalls": [*rules, added]}}}


def without_io_uring(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration with IO_URING removed from its seccomp profile, if it has one. Pure."""
    seccomp = config["linux"].get("seccomp")
    if not seccomp:
        return config
    rules = [rule | {"names": names} for rule in seccomp.get("syscalls") or ()
             if (names := [name for name in rule["names"] if name not in IO_URING])]
    added = {"names": sorted(IO_URING), "action": REFUSE, "errnoRet": errno.ENOSYS}
    return config | {"linux": config["linux"] | {"seccomp": seccomp | {"syscalls": [*rules, added]}}}


def without_huge_pages(config: dict[str, Any], sizes: Collection[str]) -> dict[str, Any]:
    """Return the configuration without huge pages of these sizes, for which Docker has no option. Pure."""
    if not sizes:
        return config
    limits = {"hugepageLimits": [{"pageSize": size, "limit": 0} for size in sizes]}
    return config | {"linux": config["linux"] | {"resources": (config["linux"].get("resources") or {}) | limits}}


def permits(rule: dict[str, Any], call: str) -> bool:
    """Return whether a rule of a seccomp profile permits a system call with any arguments. Pure."""
    return call in rule["names"] and rule["action"] == PERMIT and not rule.get("args")


# runc's command line.


def runc(words: Sequence[str], meanwhile: Callable[[], None] | None = None) -> int:
    """Run runc.

    :param meanwhile: called while runc runs; if it fails, runc is killed
    """
    try:
        process = os.posix_spawnp(RUNC, [RUNC, *words], os.environ)  # the subprocess module takes longer to load
    except FileNotFoundError as error:
        raise FileNotFoundError(f"this host has no {RUNC} on the path {os.environ.get('PATH')}: install it (Docker's "
                                "package containerd.io brings it)") from error
    try:
        if meanwhile:
            meanwhile()
    except BaseException:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        raise
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def command_of(words: Sequence[str]) -> str | None:
    rest = list(words)
    while rest and rest[0].startswith("-"):
        del rest[:2 if rest[0] in VALUED else 1]
    return rest[0] if rest else None


def common(words: Sequence[str]) -> list[str]:
    """Return the options that precede the command."""
    return list(words[:list(words).index(command_of(words) or "")])


def value_of(words: Sequence[str], option: str) -> str | None:
    return words[list(words).index(option) + 1] if option in words else None


def failed(words: Sequence[str], why: str) -> int:
    """Report a failure where Docker reads it: as the last error in runc's log."""
    log = value_of(words, "--log")
    if log:
        with open(log, "a", encoding="utf-8") as file:
            file.write(json.dumps({"level": "error", "msg": why}) + "\n")
    print(why, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
