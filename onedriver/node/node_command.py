# SPDX-License-Identifier: Apache-2.0
"""Run the parts of a driver's command on a node that are common to all engines.

Modules that a short call does not need are not imported: they would take most of its time.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Generic, TypeVar

from containerhost.errors import ContainerHostError
from onedriver import program
from onedriver.errors import DriverError
from onedriver.node import vmlock
from onedriver.node.options import NodeOptions

Options = TypeVar("Options", bound=NodeOptions)

STARTS = ("deploy", "restore")


class NodeCommand(Generic[Options]):
    """Run actions of oned, probes and commands in containers.

    :param free_devices: called before a VM with devices starts, to recover devices that killed actions left to
        others
    :param unsupported: reasons by action
    :param own_prefix: of the driver's attributes
    """

    def __init__(self, load: Callable[[], Options], backend: ModuleType, free_devices: Callable[[Options], None],
                 unsupported: Mapping[str, str], own_prefix: str) -> None:
        self._load = load
        self._backend = backend
        self._free_devices = free_devices
        self._unsupported = unsupported
        self._own_prefix = own_prefix

    def run(self, words: Sequence[str]) -> int:
        """Run ``vmm ACTION ARGUMENT…``, ``vmm receive ARGUMENT…``, ``probe KIND/NAME`` or ``command NAME FD``."""
        match words:
            case ["vmm", "limit_nic", *argv]:
                return self._limit_nic(argv)
            case ["vmm", "receive", *argv]:
                return run("receive", lambda: self._receive(argv))
            case ["vmm", script, *argv]:
                return self.vmm(script, argv)
            case ["command", name, fd]:
                return self._command(name, fd)
        return self._probe(words[1])

    def vmm(self, script: str, argv: Sequence[str]) -> int:
        """Run an action of oned by the name of its script."""
        from onedriver import actions, document
        from onedriver.node import validation

        def act() -> str | None:
            call = actions.call(script, argv, document.read(sys.stdin.buffer), self._own_prefix)
            validation.of_action(call.action, self._unsupported)
            if call.action in STARTS and call.vm.pcis:
                self._free_devices(self._load())
            with self.alone(call.vm_id) as options:
                return getattr(self._backend.vmm(options), call.action)(call)

        return run(script, act)

    def _receive(self, argv: Sequence[str]) -> str:
        """Receive a VM that migrates while it runs, as its source requests on standard input.

        :param argv: of the source's own call
        """
        from onedriver import actions
        from onedriver.node import livemigration

        node = os.uname().nodename
        asked = livemigration.requests(sys.stdin.buffer, self._load().migration_timeout)
        document, source = livemigration.document_of(next(asked))
        call = actions.call("migrate", argv, document, self._own_prefix)
        if source == node:
            raise DriverError(f"the destination is this node, or has its name: {node}")
        with self.alone(call.vm_id) as options, self._backend.vmm(options).arriving(call, source) as arrival:
            livemigration.write(sys.stdout.buffer, {"node": node})
            livemigration.serve(arrival, asked, sys.stdout.buffer)
        return "{}"

    def _limit_nic(self, argv: Sequence[str]) -> int:
        """Limit the rates of a VM's NIC, for OpenNebula's network driver."""
        from onedriver.node import niclimits

        def act() -> None:
            wanted = niclimits.parsed(argv)
            with self.alone(wanted.vm_id, niclimits.TIMEOUT) as options:
                self._backend.vmm(options).limit_nic(*wanted)

        return run(niclimits.ACTION, act)

    def _command(self, name: str, fd: str) -> int:
        from onedriver.node import exec_agent

        return exec_agent.run(name, fd, self._load,
                              lambda options, name, words: self._backend.engine(options).command(name, words))

    def _probe(self, name: str) -> int:
        from onedriver.node import measure

        return run(name, lambda: measure.probe(name, lambda: self._backend.measure(self._load())))

    @contextlib.contextmanager
    def alone(self, vm_id: int, timeout: float | None = None) -> Iterator[Options]:
        """Exclude all other actions on the VM within the block.

        :param timeout: seconds to wait for another one; None for the time limit of an operation of the engine
        """
        options = self._load()
        with vmlock.held(Path(options.state), vm_id, options.operation_timeout if timeout is None else timeout):
            yield options


def run(what: str, act: Callable[[], str | None]) -> int:
    return program.run(what, act, {ContainerHostError: 1})
