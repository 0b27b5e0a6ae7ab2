# SPDX-License-Identifier: Apache-2.0
"""Start, watch and end the cloud's processes; a later command finds them again by the notes kept beside their logs."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

POLL = 0.1  # seconds
KILL_TIMEOUT = 5  # seconds that the kernel may take to end a killed process
# In the environment of everything the cloud starts, so that whatever is left can be identified.
MARK = "NOVA_LXD_EXT_CLOUD"


class DaemonFailed(Exception):
    """A process ended or did not become ready in time; the message has the end of its log."""


@dataclasses.dataclass(frozen=True)
class Daemon:
    """:ivar ready: answers whether it can do its work; asked again and again, must not block for long
    :ivar limit: seconds it may take to become ready
    :ivar end: the signal that ends it. Most hold nothing that outlives the cloud, so they are just killed.
    """

    name: str
    argv: tuple[str, ...]
    ready: Callable[[], bool]
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    limit: float = 600
    end: signal.Signals = signal.SIGKILL


class Daemons:
    """The processes of one cloud.

    :param directory: their logs and notes; the mark of their environment, too
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._directory.mkdir(parents=True, exist_ok=True)
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._daemons: dict[str, Daemon] = {}
        self._started: dict[str, float] = {}

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of every process of the cloud. LC_ALL: Erlang and Python want UTF-8."""
        return {**os.environ, MARK: str(self._directory), "LC_ALL": "C.UTF-8"}

    def log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def pids(self) -> dict[str, int]:
        """Return the pid of each process that was started."""
        return {name: child.pid for name, child in self._children.copy().items()}

    def start(self, daemon: Daemon) -> None:
        """Start it and return at once; :meth:`wait` for it later."""
        environment = {**self.environment, **daemon.environment}
        with self.log(daemon.name).open("ab") as log:
            child = subprocess.Popen(daemon.argv, env=environment, start_new_session=True,
                                     stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        self._children[daemon.name] = child
        self._daemons[daemon.name] = daemon
        self._started[daemon.name] = time.monotonic()
        note = {"pid": child.pid, "started": start_time(child.pid), "end": daemon.end.value}
        self._note(daemon.name).write_text(json.dumps(note))

    def wait(self, name: str) -> float:
        """Wait until it is ready; returns the seconds it took from its start.

        :raises DaemonFailed: it ended, or its limit passed
        """
        daemon, started = self._daemons[name], self._started[name]
        while not daemon.ready():
            self.check()
            if time.monotonic() - started > daemon.limit:
                raise DaemonFailed(f"{name} was not ready after {daemon.limit:.0f} s.\n{self._end_of_log(name)}")
            time.sleep(POLL)
        return time.monotonic() - started

    def check(self) -> None:
        """Check that every daemon still runs.

        :raises DaemonFailed: one that was started, and not stopped, has ended
        """
        for name, child in list(self._children.items()):
            if child.poll() is None:
                continue
            note = self._note(name)
            if not note.exists() or json.loads(note.read_text())["pid"] != child.pid:
                del self._children[name]  # another process stopped or restarted it
            else:
                raise DaemonFailed(f"{name} ended with status {child.returncode}.\n{self._end_of_log(name)}")

    def bring_up(self, daemons: Iterable[Daemon]) -> None:
        """Start them all at once, then wait for all."""
        daemons = list(daemons)
        for daemon in daemons:
            self.start(daemon)
        for daemon in daemons:
            self.wait(daemon.name)

    def restart(self, name: str) -> None:
        """End a process that was started, by its signal, and wait until it is ready once more."""
        daemon = self._daemons[name]
        self.stop([name])
        self.bring_up([daemon])

    def run(self, name: str, argv: Sequence[str], environment: Mapping[str, str] | None = None, limit: float = 300,
            ) -> None:
        """Run one command to its end, its output in a log of its own.

        :raises DaemonFailed: it failed or took longer than ``timeout`` seconds
        """
        with self.log(name).open("ab") as log:
            try:
                done = subprocess.run(argv, env={**self.environment, **(environment or {})}, timeout=limit, check=False,
                                      stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
            except subprocess.TimeoutExpired:
                raise DaemonFailed(f"{name} took longer than {limit:.0f} s.\n{self._end_of_log(name)}") from None
        if done.returncode:
            raise DaemonFailed(f"{name} failed with status {done.returncode}.\n{self._end_of_log(name)}")

    def stop(self, names: Iterable[str] | None = None, limit: float = 20) -> None:
        """End the named ones, or all; whatever has not ended after ``timeout`` seconds is killed."""
        names = [note.stem for note in self._directory.glob("*.json")] if names is None else list(names)
        notes = {name: json.loads(self._note(name).read_text()) for name in names}
        for note in notes.values():
            if alive(note):
                os.killpg(note["pid"], note["end"])
        deadline = time.monotonic() + limit
        for name, note in notes.items():
            if not self._ended(name, note, deadline):
                os.killpg(note["pid"], signal.SIGKILL)
                self._ended(name, note, time.monotonic() + KILL_TIMEOUT)
            self._note(name).unlink()
            self._children.pop(name, None)

    def kill_leftovers(self) -> list[str]:
        """Kill what daemons left running in sessions of their own (privsep helpers, container monitors).

        :returns: their names
        """
        killed = {}
        for pid, name in self.marked().items():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended by itself meanwhile
                note = {"pid": pid, "started": start_time(pid)}
                os.kill(pid, signal.SIGKILL)
                killed[pid] = note, name
        deadline = time.monotonic() + KILL_TIMEOUT
        while any(alive(note) for note, _name in killed.values()) and time.monotonic() < deadline:
            time.sleep(POLL / 5)
        return sorted(name for _note, name in killed.values())

    def marked(self) -> dict[int, str]:
        """Return the names of all processes that the cloud started, by pid; those that daemons started too."""
        found = {}
        mark = f"{MARK}={self._directory}".encode()
        for directory in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):  # hidden even from root
                if int(directory.name) != os.getpid() and mark in (directory / "environ").read_bytes().split(b"\0"):
                    found[int(directory.name)] = (directory / "comm").read_text().strip()
        return found

    def _ended(self, name: str, note: Mapping[str, int], deadline: float) -> bool:
        """Wait for its end, until the deadline (time.monotonic). A child of this process must be collected as well."""
        child = self._children.get(name)
        while child.poll() is None if child else alive(note):
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL / 5)
        return True

    def _note(self, name: str) -> Path:
        return self._directory / f"{name}.json"

    def _end_of_log(self, name: str, lines: int = 25) -> str:
        text = self.log(name).read_text(errors="replace").splitlines()
        return "\n".join([f"The end of {self.log(name)}:", *text[-lines:]])


def start_time(pid: int) -> int:
    """When a process started, in clock ticks since boot: with its number it names a process for good (proc(5))."""
    return int(_stat(pid)[19])


def alive(note: Mapping[str, int]) -> bool:
    """Return whether the noted process still runs, and is the one that was noted; a zombie does not."""
    try:
        fields = _stat(note["pid"])
    except (FileNotFoundError, ProcessLookupError):
        return False
    return fields[0] != "Z" and int(fields[19]) == note["started"]


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat behind the program's name, which may have blanks and brackets in it."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
