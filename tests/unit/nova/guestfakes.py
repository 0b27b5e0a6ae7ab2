# SPDX-License-Identifier: Apache-2.0
"""The engine in memory with what reaches into a container: consoles, commands, events."""

import queue
from collections.abc import Callable, Mapping

from containerhost import errors
from containerhost.engines.contract import Change, Console, Status
from containerhost.engines.spec import ContainerSpec, Cpu, Memory, RootDisk
from tests.unit.nova.fakes import IMAGE, FakeEngine


class FakeEvents:
    """Deliver what is put into ``changes``; None ends the connection."""

    def __init__(self) -> None:
        self.changes: queue.Queue[Change | None] = queue.Queue()

    def receive(self, timeout: float | None = None) -> Change:
        try:
            change = self.changes.get(timeout=timeout)
        except queue.Empty as error:
            raise errors.EngineTimeout("nothing came") from error
        if change is None:
            raise errors.EngineUnavailable("the connection has ended")
        return change

    def close(self) -> None:
        self.changes.put(None)


class GuestEngine(FakeEngine):
    """:ivar open_console: makes a console
    :ivar listeners: every connection to the events, in order
    """

    def __init__(self, open_console: Callable[[], Console] | None = None) -> None:
        super().__init__()
        self.open_console = open_console
        self.listeners: list[FakeEvents] = []

    def add(self, name: str, labels: Mapping[str, str], status: Status) -> None:
        self.specs[name] = ContainerSpec(name, IMAGE, Cpu(1), Memory(1 << 20), RootDisk("default"), labels=labels)
        self.statuses[name] = status

    def console(self, name: str) -> Console:
        self._called("console", name)
        assert self.open_console is not None
        return self.open_console()

    def events(self) -> FakeEvents:
        self._called("events")
        self.listeners.append(FakeEvents())
        return self.listeners[-1]
