# SPDX-License-Identifier: Apache-2.0
"""Control groups of an emulated host's own, so that what engines leave in them goes with the host.

Both kinds are handled (cgroups(7)): version 1 hierarchies, where the host's groups lie below those of the process that
starts it, and version 2, where only a child of the root can hand controllers on.
"""

import contextlib
import dataclasses
import os
import pathlib
import time
from collections.abc import Sequence

_MOUNTS = "/sys/fs/cgroup"
_LIMIT = 5  # seconds that processes which were killed may need to be gone
_PREFIX = "fakehost-"
_LEAF = "processes"  # version 2 allows processes in leaves only


@dataclasses.dataclass(frozen=True)
class Group:
    """A group of the emulated host in one hierarchy.

    :ivar mount: where the hierarchy is mounted
    :ivar path: the group's directory
    :ivar unified: it is a version 2 hierarchy
    """

    mount: str
    path: str
    unified: bool

    def enter(self) -> None:
        """Move this process into the group, which a cgroup namespace made then has as its root."""
        _write(f"{self.path}/cgroup.procs", "0")

    def settle(self) -> None:
        """Move this process to where processes of the host are, so that engines may make groups beside it."""
        self.join()
        if self.unified:
            _hand_on_controllers(self.path)

    def join(self) -> None:
        """Move this process to where the processes of the host are."""
        _write(f"{self.path}/{_LEAF if self.unified else ''}/cgroup.procs", "0")


def make() -> list[Group]:
    """Make groups for a host that this process starts; sweeps those whose starter was killed before it could."""
    groups = []
    for mount, parent, unified in _own_groups("self"):
        _sweep(parent)
        group = Group(mount, f"{parent}/{_PREFIX}{os.getpid()}", unified)
        os.mkdir(group.path)
        if unified:
            # In a container the root group has processes, and keeps controllers that were not delegated before.
            with contextlib.suppress(OSError):
                _hand_on_controllers(parent)
            os.mkdir(f"{group.path}/{_LEAF}")
        else:
            _copy_cpuset(parent, group.path)
        groups.append(group)
    return groups


def of(pid: int) -> list[Group]:
    """The groups of the emulated host that a process on it belongs to."""
    groups = []
    for mount, path, unified in _own_groups(str(pid)):
        parts = pathlib.PurePath(path).parts
        depth = next((index for index, part in enumerate(parts) if part.startswith(_PREFIX)), None)
        if depth is not None:
            groups.append(Group(mount, str(pathlib.PurePath(*parts[: depth + 1])), unified))
    return groups


def remove(groups: Sequence[Group]) -> None:
    """Remove groups, with all below them, that no process is in any more.

    :raises OSError: EBUSY when processes are still there
    """
    for group in groups:
        remove_directory(group.path, time.monotonic() + _LIMIT)


def thaw(groups: Sequence[Group]) -> None:
    """Thaw everything in groups of version 1: a frozen process does not end there before, even when it is killed."""
    for group in groups:
        for state in pathlib.Path(group.path).rglob("freezer.state"):
            with contextlib.suppress(OSError):  # the group has just been removed
                _write(str(state), "THAWED")


def _own_groups(pid: str) -> list[tuple[str, str, bool]]:
    """Per hierarchy: its mount point, the directory below which a host's group belongs, and whether it is version 2."""
    found = []
    memberships = [line.split(":", 2) for line in pathlib.Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        left, right = line.split(" - ")
        root, mount = left.split()[3:5]
        kind, _, options = right.split(maxsplit=2)
        if not mount.startswith(_MOUNTS) or not kind.startswith("cgroup"):
            continue
        for _, controllers, path in memberships:
            if kind == "cgroup2" and not controllers:
                found.append((mount, mount if pid == "self" else mount + path.rstrip("/"), True))
            elif kind == "cgroup" and controllers and set(controllers.split(",")) <= set(options.split(",")):
                found.append((mount, mount + path.removeprefix(root.rstrip("/")).rstrip("/"), False))
    return found


def _hand_on_controllers(directory: str) -> None:
    for controller in pathlib.Path(directory, "cgroup.controllers").read_text().split():
        _write(f"{directory}/cgroup.subtree_control", f"+{controller}")


def _copy_cpuset(parent: str, group: str) -> None:
    """A new version 1 cpuset has no CPU and no memory, and takes no process until it has."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        source = pathlib.Path(parent, name)
        if source.exists():
            _write(f"{group}/{name}", source.read_text())


def _sweep(parent: str) -> None:
    for left in pathlib.Path(parent).glob(f"{_PREFIX}*"):
        if not os.path.exists(f"/proc/{left.name.removeprefix(_PREFIX)}"):
            with contextlib.suppress(OSError):  # remaining processes belong to the caller
                remove_directory(str(left), time.monotonic())


def remove_directory(directory: str, deadline: float) -> None:
    """Remove a group and those below it.

    The kernel lets none go before its last thread has ended, and does not list a process whose first one has.

    :param deadline: on the monotonic clock
    :raises OSError: there is a thread in it when the time is over
    """
    for entry in os.scandir(directory):
        if entry.is_dir(follow_symlinks=False):
            remove_directory(entry.path, deadline)
    while True:
        try:
            os.rmdir(directory)
            return
        except OSError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(0.02)


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
