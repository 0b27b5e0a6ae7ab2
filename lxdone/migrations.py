# SPDX-License-Identifier: Apache-2.0
"""Migrate running VMs between nodes: each is copied while it runs, and stopped for its last changes alone."""

import abc
import contextlib
import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from containerhost.engines import copyrounds
from containerhost.engines.contract import Status
from containerhost.engines.corebinding import unbound
from containerhost.engines.spec import ContainerSpec, Mount
from containerhost.errors import ContainerHostError, EngineConflict
from containerhost.rollback import Rollback
from lxdone import livemigration, translate
from lxdone.conf import Options
from lxdone.disk.images import Images
from lxdone.root import root_state
from lxdone.root.root_writeback import RootWriteback
from onedriver.actions import Call
from onedriver.errors import DriverError, NotSupported
from onedriver.node.consoles import Consoles
from onedriver.node.context import Contexts
from onedriver.node.livemigration import is_abandoned
from onedriver.node.vmm import BaseVmm
from onedriver.vm import Vm

if TYPE_CHECKING:
    from containerhost.engines.capabilities import Transfers

LOG = logging.getLogger(__name__)

AWAY = (Status.STOPPED, Status.FROZEN)
STDOUT = 1


class MigratingVmm(BaseVmm):
    """Send running VMs to other nodes, and receive them from there; a subclass has all other actions."""

    _options: Options
    _disks: Images
    _writeback: RootWriteback
    _contexts: Contexts
    _consoles: Consoles
    _transfers: "Transfers"
    _connect: livemigration.Connect

    def migrate(self, call: Call) -> None:
        """Restart a VM on another node. A failure before that one takes the root leaves the VM running here."""
        vm = call.vm
        livemigration.require_allowed(vm, self._options.migration_address)
        own = self._existing(call).name
        if not self._is_running(own):
            raise DriverError(f"container {own} does not run: migrate the VM while it is off")
        spec, home = self._spec(vm), self._contexts.home(own)
        with self._connect(call) as there, Rollback(f"live migration of VM {vm.id}") as undo:
            undo.on_error("end the transfers", self._transfers.withdraw, own)
            self._transfers.withdraw(own)  # what a killed migration left
            for _ in copyrounds.rounds(f"{own} to {there.node}"):
                self._send_changes(own, there)
                self._require_wanted(home)
            if not self._is_running(own):
                raise DriverError(f"container {own} was shut down meanwhile")
            undo.on_error("let it run here", self._stay, vm, spec)
            self._commands.cancel(own)
            self._stop_at_last(own)
            self._disks.release_all(vm.id)
            self._send_changes(own, there)
            self._require_wanted(home)
            self._writeback.offer(home, there.node)
            try:
                there.start()
            except DriverError as error:
                if self._writeback.withdraw(home):
                    raise
                raise DriverError(f"VM {vm.id} is on {there.node}, which did not report whether it runs: {error}"
                                  ) from error
        try:
            self.forget(vm.id)
        except (ContainerHostError, DriverError, OSError) as error:
            LOG.error("VM %s runs on %s, and its remains here are removed later: %s", vm.id, there.node, error)

    def _send_changes(self, own: str, there: livemigration.Destination) -> None:
        offer = self._transfers.offer_changes(own, self._options.migration_address)
        if offer is None:
            raise NotSupported("use onevm migrate without --live: differences take LXD 5.0.3 or later and a storage "
                               f"pool of type btrfs or zfs, which container {own} has not")
        there.fetch_changes(offer)

    def _require_wanted(self, home: Path) -> None:
        if self._writeback.is_ended(home) or is_abandoned(STDOUT):
            raise DriverError("OpenNebula has cancelled the live migration")

    def _stay(self, vm: Vm, spec: ContainerSpec) -> None:
        """Run the VM here, unless the destination has its root, or OpenNebula ended it."""
        home = self._contexts.home(spec.name)
        if self._writeback.is_ended(home):
            self.remove(vm.id)
        elif self._writeback.withdraw(home):
            self._run_again(vm, spec, self._allocator.view())

    @contextlib.contextmanager
    def arriving(self, call: Call, source: str) -> Iterator[livemigration.Arrival]:
        """Receive a VM from another node; on an error the copy is removed.

        :param source: the node's name
        :raises DriverError: this host does not support it; nothing has changed
        """
        vm, own = call.vm, translate.name(call.vm_id)
        home, file = self._contexts.home(own), self._root_file(vm)
        if root_state.elsewhere(file.parent, None) != source:
            raise NotSupported("use onevm migrate without --live: a live migration needs a shared system datastore "
                               f"(TM_MAD shared or qcow2), but this node does not share the directory {file.parent} "
                               f"with node {source}")
        spec = self._spec(vm)
        self._cores.preview(spec)
        state = self._find(own, vm)
        if self._writeback.is_unsaved(home) or (state is not None and state.status not in AWAY):
            raise EngineConflict(f"this node has container {own} of the VM, or a record of it, which may be newer: "
                                 "check it, and delete it when it is not needed")
        self.forget(vm.id)  # what an earlier migration left
        with Rollback(f"arrival of VM {vm.id}") as undo:
            undo.on_error("remove what arrived", self._remove_arrived, vm.id)
            self._writeback.announce(home, vm, file)
            mounts = (Mount("context", str(self._write_context(vm, None)), "/context"),)
            yield livemigration.Arrival(self._transfers, dataclasses.replace(unbound(spec), mounts=mounts),
                                        self._options.migration_peers, self._options.migration_timeout,
                                        lambda: self._take_over(vm, spec, source, undo))

    def _take_over(self, vm: Vm, spec: ContainerSpec, source: str, undo: Rollback) -> None:
        home = self._contexts.home(spec.name)
        undo.on_error("give the root back", self._give_back, vm.id, source)
        self._writeback.take(home, vm, self._root_file(vm), source)
        self._restart(vm, spec, self._allocator.view())
        self._consoles.provide(vm)

    def _give_back(self, vm_id: int, source: str) -> None:
        """Return the root to the source, which starts it again, after stopping the VM here."""
        own = translate.name(vm_id)
        if self._is_running(own):
            self._stop(own, force=True)
        self._disks.release_all(vm_id)
        self._writeback.give_back(self._contexts.home(own), source)

    def _remove_arrived(self, vm_id: int) -> None:
        """Remove a copy, unless it may be the only one of the VM."""
        if self._writeback.is_unsaved(self._contexts.home(translate.name(vm_id))):
            raise DriverError(f"the root of VM {vm_id} is this node's and stays")
        self.forget(vm_id)

    def _root_file(self, vm: Vm) -> Path:
        return self._file(vm, vm.root.id)

    def _file(self, vm: Vm, disk_id: int) -> Path:
        return Path(self._options.datastores) / str(vm.system_ds) / str(vm.id) / f"disk.{disk_id}"

    @abc.abstractmethod
    def _write_context(self, vm: Vm, owner: tuple[int, int] | None) -> Path: ...

    @abc.abstractmethod
    def remove(self, vm_id: int) -> None: ...

    @abc.abstractmethod
    def forget(self, vm_id: int) -> None: ...
