# SPDX-License-Identifier: Apache-2.0
"""Run the rounds of monitoring: every directory of probes with its own period, sending its message."""

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from onedriver.errors import DriverError
from onedriver.monitor import Type
from onedriver.monitorconfig import DIRECTORIES, MonitorConfig
from onedriver.node import commands, probe_directory
from onedriver.node.probe_directory import Found

LOG = logging.getLogger(__name__)
FIRST = (Type.SYSTEM_HOST, Type.MONITOR_HOST, Type.STATE_VM, Type.MONITOR_VM)  # in the response to a start
OF_HOST = (Type.SYSTEM_HOST, Type.MONITOR_HOST, Type.BEACON_HOST)
LAST_ROUND = 10  # seconds for probes that run at the end
WATCH_INTERVAL = 2.0  # s
#: Seconds after which a state is sent again: oned ignores states for 30 s after it changed the VM's state itself.
RESEND_AGES = (20.0, 35.0, 65.0)
ALL_PERIOD = 200.0  # seconds after which all states are sent without a complete list: oned may have other ones
COMPLETE = "SYNC_STATE"  # marks a complete list: oned takes VMs missing from it as ended
BACK_OFF_LIMIT = 300  # seconds; after unknown errors the pause doubles up to this

Send = Callable[[Type, bool, str], None]


class ProbeFailed(DriverError):
    """Signal that a probe of the host failed."""


class StateChanges:
    """Select the VM states to send: oned writes to its database for each one, even if it is unchanged."""

    def __init__(self) -> None:
        self._due: dict[str, list[float]] = {}  # times of further sends, by current line
        self._all_sent = 0.0  # time of the last send of all current lines

    def of(self, text: str, now: float) -> str:
        """Return the lines that are new or due; all every ALL_PERIOD, and if the list is complete.

        :param text: lines of all VMs
        """
        lines = text.splitlines()
        self._due = {line: self._due[line] for line in lines if line in self._due}
        if now - self._all_sent >= ALL_PERIOD or any(line.startswith(COMPLETE) for line in lines):
            return text
        return "\n".join(line for line in lines if any(moment <= now for moment in self._due.get(line, (now,))))

    def was_sent(self, text: str, now: float) -> None:
        lines = text.splitlines()
        if self._due.keys() <= set(lines):
            self._all_sent = now
        for line in lines:
            moments = self._due.get(line, [now + age for age in RESEND_AGES])
            self._due[line] = [moment for moment in moments if moment > now]


class PollLoop:
    """Run a node's monitoring probes periodically, and send their output to onemonitord.

    :param directory: of the driver's probes
    :param state: the driver's directory, which changes when a command's outcome is stored
    """

    def __init__(self, directory: Path, argv: Sequence[str], stdin: bytes, allocations: Path, state: Path) -> None:
        self._directory = directory
        self._allocations = allocations
        self._state = state
        self._silent: int | None = None  # mtime of the state before the last round without results
        self._argv = argv
        self._stdin = stdin
        self._changes = StateChanges()
        self._sent: tuple[str, ...] = ()  # tokens of the commands' results that the last round sent

    def found(self, kind: Type) -> Found:
        argv = (*self._argv, *self._sent) if kind is Type.EXEC_VM else self._argv
        return probe_directory.run(self._directory / DIRECTORIES[kind], argv, self._stdin)

    def first(self) -> list[tuple[str, str]]:
        """Return the answer to the start. Failing probes of VMs are left out here, and reported later.

        :raises ProbeFailed: the host cannot be measured
        """
        found = [(kind, self.found(kind)) for kind in FIRST]
        for kind, result in found:
            if kind in OF_HOST and not result.success:
                raise ProbeFailed(result.text)
        return [(kind.value, result.text) for kind, result in found if result.success]

    def run(self, config: MonitorConfig, send: Send, ended: threading.Event) -> None:
        """Run all rounds, until ``ended``."""
        threads = [threading.Thread(target=self._repeat, args=(kind, config.periods[kind], send, ended), name=kind,
                                    daemon=True) for kind in DIRECTORIES]
        threads.append(threading.Thread(target=self._watch, args=(modified(self._allocations), send, ended),
                                        name="allocations", daemon=True))
        for thread in threads:
            thread.start()
        ended.wait()
        deadline = time.monotonic() + LAST_ROUND
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _repeat(self, kind: Type, period: int, send: Send, ended: threading.Event) -> None:
        failures = 0
        while not ended.is_set():
            failures = 0 if self._survived(kind, send) else failures + 1
            ended.wait(min(period << min(failures, 16), max(period, BACK_OFF_LIMIT)))

    def _watch(self, seen: int | None, send: Send, ended: threading.Event) -> None:
        """Report the host's devices when an allocation changes: oned does not know those of the other driver."""
        while not ended.wait(WATCH_INTERVAL):
            now = modified(self._allocations)
            if now != seen:
                seen = now
                self._survived(Type.SYSTEM_HOST, send)

    def _survived(self, kind: Type, send: Send) -> bool:
        """Run a round, logging an error so that later rounds still run; return whether it succeeded."""
        try:
            self.once(kind, send)
        except Exception:
            LOG.exception("A round of %s failed", kind.value)
            return False
        return True

    def once(self, kind: Type, send: Send) -> None:
        """Run the probes of one directory, and send their output, if any; the next round retries a failed send."""
        if kind is Type.EXEC_VM:
            changed = modified(self._state)
            if changed is not None and changed == self._silent:
                return  # avoids running the probe every few seconds if no command has ended
        found, now = self.found(kind), time.monotonic()
        if kind is Type.STATE_VM and found.success:
            found = dataclasses.replace(found, text=self._changes.of(found.text, now))
        if kind is Type.EXEC_VM:
            self._sent = ()
            self._silent = changed if found.success and not found.text else None
        if found.success and not found.text:
            return
        try:
            send(kind, found.success, found.text)
        except OSError as error:
            LOG.warning("%s cannot be sent: %s", kind.value, error)
            return
        if kind is Type.STATE_VM and found.success:
            self._changes.was_sent(found.text, now)
        if kind is Type.EXEC_VM and found.success:
            self._sent = tuple(map(commands.token, found.text.splitlines()))


def modified(directory: Path) -> int | None:
    """Return when an entry of a directory was added, removed or replaced, in ns; None if it cannot be read."""
    try:
        return directory.stat().st_mtime_ns
    except OSError:
        return None
