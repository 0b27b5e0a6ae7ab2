# SPDX-License-Identifier: Apache-2.0
"""Manage the VNC consoles of a node's VMs: which have one, its start and its end.

A console is a separate process, which holds a name while it lives (``single_instance``) and ends with its container.
Its settings are in the VM's directory, readable by root only, so that a round of monitoring can restart one that
died.
"""

import dataclasses
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path

from containerhost.errors import ContainerHostError
from containerhost.linux import records
from containerhost.linux.files import atomic_write, closing
from containerhost.linux.run import detached
from onedriver import graphics
from onedriver.graphics import Vnc
from onedriver.node import names, single_instance
from onedriver.node.vnc import server
from onedriver.vm import Vm

LOG = logging.getLogger(__name__)

FILE = "console.json"
VERSION = 2  # version of that file
HOLDER, CLIENT = "one-console/", "one-console-client/"
END_TIMEOUT = 10  # s
BACKLOG = 8  # pending connections
RETRY = 60  # s between two attempts to restart a console


@dataclasses.dataclass(frozen=True)
class Record:
    """Record a console's settings, and the container's first process, which identifies the run it shows."""

    vnc: Vnc
    pid: int


class Consoles:
    """Start, stop and restart the VNC consoles of a node's VMs.

    :param state: the driver's directory
    :param module: the driver's program for a client
    """

    def __init__(self, state: Path, module: str, pid: Callable[[str], int | None]) -> None:
        self._state = state
        self._module = module
        self._pid = pid

    def provide(self, vm: Vm) -> None:
        """Provide the console of a running VM, keeping an existing one.

        A console that cannot start is only logged, so that the VM keeps running.

        :raises BadInput: GRAPHICS is invalid
        """
        name, wanted = names.name(vm.id), graphics.vnc(vm.id, vm.graphics)
        if wanted is None:
            if vm.graphics:
                LOG.info("GRAPHICS of type %s is ignored: a container can have a console of type VNC",
                         vm.graphics.get("TYPE"))
            self.end(name)
            return
        self._begin(name, wanted)

    def end(self, name: str) -> None:
        """End the console of a VM. Idempotent. Raise AlreadyRunning if it does not end."""
        (self._state / name / FILE).unlink(missing_ok=True)
        self._stop(name)

    def dead(self, running: Collection[str]) -> tuple[str, ...]:
        """Return the running containers whose console is missing and was not retried recently."""
        found = [file for file in self._state.glob(f"*/{FILE}")
                 if file.parent.name in running and not changed_lately(file)]
        return tuple(file.parent.name for file in found if not single_instance.is_held(HOLDER + file.parent.name))

    def revive(self, name: str) -> None:
        record = read(self._state / name / FILE)
        if record:
            self._begin(name, record.vnc)

    def _begin(self, name: str, wanted: Vnc) -> None:
        try:
            pid = self._pid(name)
            if pid is None:
                return
            file, record = self._state / name / FILE, Record(wanted, pid)
            if read(file) == record and single_instance.is_held(HOLDER + name):
                return
            self._stop(name)
            write(file, record)
            serve(self._module, name, record)
        except (OSError, ContainerHostError, single_instance.AlreadyRunning) as error:
            LOG.warning("%s has no console at port %d of %s: %s", name, wanted.port, wanted.listen, error)

    @staticmethod
    def _stop(name: str) -> None:
        for kind in (HOLDER, CLIENT):
            single_instance.end(kind + name, END_TIMEOUT)


def serve(module: str, name: str, record: Record) -> None:
    """Open the console's port and start its process, without waiting until it has started.

    :raises OSError: the port is taken, or the container has ended
    """
    family = socket.AF_INET6 if ":" in record.vnc.listen else socket.AF_INET
    with (single_instance.take(HOLDER + name) as place,
          socket.create_server((record.vnc.listen, record.vnc.port), family=family, backlog=BACKLOG) as port,
          closing(os.pidfd_open(record.pid)) as first_process):
        fds = [port.fileno(), place.fileno(), first_process]
        detached([sys.executable, "-m", server.__name__, module, name, *map(str, fds)], pass_fds=fds)


def read(file: Path) -> Record | None:
    """Read a console's record; None if it cannot be read."""
    try:
        found = records.parsed(Record, file.read_text(encoding="utf-8"))
        return dataclasses.replace(found, vnc=Vnc(**found.vnc))  # type: ignore[arg-type]
    except (OSError, ValueError, TypeError):
        return None


def write(file: Path, record: Record) -> None:
    """Write the console's record, which contains the password."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    atomic_write(file, records.replacing(file, dataclasses.asdict(record), VERSION).encode(), 0o600)


def changed_lately(file: Path) -> bool:
    """Return whether a file was changed within :data:`RETRY`, or is gone. A time in the future does not count."""
    try:
        return 0 <= time.time() - file.stat().st_mtime <= RETRY
    except FileNotFoundError:
        return True
