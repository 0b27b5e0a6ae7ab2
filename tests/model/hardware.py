# SPDX-License-Identifier: Apache-2.0
"""Read a described host whose files fail, and act on it as root where actions fail, are late, or never answer.

Each read and each action is a step: its caller's plan of faults decides how it ends.
"""

import atexit
import contextlib
import functools
import inspect
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from containerhost.errors import HostActionFailed
from containerhost.linux.sysfs import Host
from containerhost.privileged import Privileged
from tests import levels
from tests.fakehost import description, tree
from tests.model import frame
from tests.unit.containerhost.hosts import MEMORY
from tests.unit.nova.fakes import NoPrivileges

UNREADABLE, EMPTY, STALE = "unreadable", "reads empty", "reads stale"
FAILS, LATE, HANGS = "root fails", "root is late", "root hangs"  # of the last two the caller learns nothing in time
NO_ANSWER, FORMER_ANSWER = "answers empty", "answers stale"  # the list of the engine's containers
#: How each kind of step may end. A path that is unreadable stays so until the process ends.
ENDS = {"list": (NO_ANSWER, FORMER_ANSWER), "root": (FAILS, LATE, HANGS),
        "look": (UNREADABLE,), "look again": (UNREADABLE, STALE),
        "read": (UNREADABLE, EMPTY), "read again": (UNREADABLE, EMPTY, STALE)}
BOUND = ("driver", "net", "infiniband")  # what a function shows while a driver is bound to it
Step = Callable[[str], str | None]
REQUESTS, OTHERS = 2, 5  # of which the gate tries points, and how many others than reads
READS = 5, 3000  # points of reads at the gate and at the exhaustive level


class Point(NamedTuple):
    """A fault at a step of a request, and what the step is."""

    name: str
    fault: str
    step: int
    what: str


class Reads(Host):
    """Let each read of a file, and each look at a name, be a step, ``again`` if it said something else before.

    :ivar latest, former: what each said the last time, and what it said before that said otherwise
    """

    def __init__(self, root: Path | str, step: Step) -> None:
        super().__init__(root)
        self._step = step
        self._broken: set[str] = set()
        self.latest: dict[tuple[str, str], Any] = {}
        self.former: dict[tuple[str, str], Any] = {}

    def go_on(self) -> None:
        """Let all paths be readable again."""
        self._broken.clear()

    def _read(self, method: str, path: str, nothing: Any, answer: Any) -> Any:
        key = method, path
        if key in self.latest and self.latest[key] != answer:
            self.former[key] = self.latest[key]
        self.latest[key] = answer
        fault = self._step(("read" if method == "open" else "look") + (" again" if key in self.former else ""))
        if fault == UNREADABLE:
            self._broken.add(path)
        if fault == STALE:
            return self.former.get(key, answer)
        return nothing if fault == EMPTY or path in self._broken else answer

    def open(self, path: str) -> int | None:
        """Open a file; return one with the faulty content where a fault applies, None if it is missing."""
        fd = super().open(path)
        content = None
        if fd is not None:
            with contextlib.suppress(OSError):
                content = os.pread(fd, 1 << 16, 0)
        said = self._read("open", path, b"", content)
        if fd is None or said == content:
            return fd
        os.close(fd)
        if path in self._broken or said is None:
            return None
        with tempfile.TemporaryFile(dir=MEMORY) as file:
            file.write(said)
            file.seek(0)
            return os.dup(file.fileno())

    def names(self, path: str) -> tuple[str, ...]:
        found: tuple[str, ...] = self._read("names", path, (), super().names(path))
        return found

    def exists(self, path: str) -> bool:
        return bool(self._read("exists", path, False, super().exists(path)))

    def is_directory(self, path: str) -> bool:
        return bool(self._read("is_directory", path, False, super().is_directory(path)))

    def target(self, path: str) -> str | None:
        found: str | None = self._read("target", path, None, super().target(path))
        return found

    def node_fault(self, path: str, major: int, minor: int) -> str | None:
        found: str | None = self._read("node_fault", path, f"{path} is missing", super().node_fault(path, major, minor))
        return found


class Hardware(NoPrivileges):
    """Act on a described host's files, as its kernel shows it."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def _function(self, address: str) -> Path:
        return (self._root / "sys/bus/pci/devices" / address).resolve()

    def unbind(self, address: str, driver: str) -> None:
        """Hide what the driver shows."""
        function = self._function(address)
        if not (function / "driver").is_symlink():
            raise HostActionFailed("No such device")
        for name in BOUND:
            if os.path.lexists(function / name):
                (function / name).rename(function / f".{name}")

    def bind(self, address: str, driver: str) -> None:
        function = self._function(address)
        if (function / "driver").is_symlink():
            raise HostActionFailed("Device or resource busy")
        for name in BOUND:
            if os.path.lexists(function / f".{name}"):
                (function / f".{name}").rename(function / name)

    def rename_netdev(self, name: str, new: str) -> None:
        link = self._root / "sys/class/net" / name
        if not link.is_symlink():
            raise HostActionFailed(f"there is no interface {name}")
        directory = link.resolve()
        directory.rename(directory.with_name(new))
        link.unlink()
        (link.parent / new).symlink_to(directory.with_name(new))

    def set_vf_guids(self, netdev: str, index: int, node_guid: str, port_guid: str) -> None:
        function = (self._root / "sys/class/net" / netdev).resolve().parents[1]
        for name in ("infiniband", ".infiniband"):
            for ibdev in (function / f"virtfn{index}" / name).glob("*"):
                (ibdev / "node_guid").write_text(f"{node_guid}\n")
                (ibdev / "ports/1/gids/0").write_text(f"fe80:0000:0000:0000:{port_guid}\n")

    def reset(self, address: str) -> bool:
        return True

    def reset_gpu(self, vendor: str, address: str, others: Collection[str] = ()) -> bool:  # type: ignore[override]
        return True

    def _nothing(self, *arguments: Any) -> None:
        """Nothing of it shows."""

    set_vf_port = set_vf_rate = set_vf_link = link_down_and_flush = mark_reset = thaw_left = _nothing  # type: ignore[assignment]


class Root:
    """Let each action of another's be a step, named ``root``.

    :ivar queued: actions whose processes wait in the kernel: they are done after their callers have given up
    """

    def __init__(self, actions: Privileged, step: Step) -> None:
        self._step = step
        self._waiting: set[Any] = set()
        self.queued: list[Callable[[], Any]] = []
        for name, _ in inspect.getmembers(Privileged, inspect.isfunction):
            if not name.startswith("_"):
                setattr(self, name, functools.partial(self._act, getattr(actions, name)))

    def _act(self, action: Callable[..., Any], *args: Any, **more: Any) -> Any:
        fault = self._step("root")
        what, device = action.__name__, args[0] if args and isinstance(args[0], str) else None
        if fault == FAILS:
            raise HostActionFailed(f"{what}: it failed")
        if device in self._waiting:
            raise HostActionFailed(f"{what}: a process waits for {device} since an earlier try")
        if fault == HANGS:
            self._waiting |= {device} - {None}
            self.queued.append(functools.partial(action, *args, **more))
            raise HostActionFailed(f"{what}: not done in time")
        result = action(*args, **more)
        if fault == LATE:
            raise HostActionFailed(f"{what}: not done in time")
        return result

    def go_on(self) -> None:
        """Let the processes go on that wait in the kernel; what is impossible by now fails."""
        queued, self.queued = self.queued, []
        self._waiting.clear()
        for action in queued:
            with contextlib.suppress(HostActionFailed):
                action()


@functools.cache
def pristine() -> Path:
    """Return the directory of a described host, which one machine after the other may change and restores."""
    directory = Path(tempfile.mkdtemp(prefix="model-host-", dir=MEMORY))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    tree.write(description.load("small"), directory)
    return directory


def drawn(names: Sequence[str], steps: Callable[[str], Iterable[str]]) -> list[Point]:
    """Draw points at which a list, an action of root or a read meets a fault; which ones follows from the commit.

    :param names: of requests, of which the gate takes some
    :param steps: returns those of an undisturbed request
    """
    chosen = random.Random(frame.first_seed())
    requests = levels.budget(gate=chosen.sample(names, REQUESTS), exhaustive=names)
    points = [Point(name, fault, step, what) for name in requests for step, what in enumerate(steps(name))
              for fault in ENDS.get(what, ())]
    reads = [point for point in points if point.what not in ("list", "root")]
    others = [point for point in points if point.what in ("list", "root")]
    return [*chosen.sample(others, min(levels.budget(gate=OTHERS, exhaustive=len(others)), len(others))),
            *chosen.sample(reads, min(levels.budget(*READS), len(reads)))]


def unbound() -> list[str]:
    """Return the functions whose drivers were not bound again."""
    functions = pristine() / "sys/bus/pci/devices"
    return [each for each in os.listdir(functions) if os.path.lexists(functions / each / ".driver")]
