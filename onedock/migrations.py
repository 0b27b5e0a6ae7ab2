# SPDX-License-Identifier: Apache-2.0
"""Migrate running VMs between nodes: each is copied while it runs, and stopped for its last changes alone.

The copy is an archive beside the VM's disk in the shared datastore, which is complete before the other node takes the
VM; rootowner.py decides which node has it. A file in the VM's directory on either node says that the move is not over.
"""

import abc
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from containerhost.engines import copyrounds
from containerhost.engines.contract import ContainerState, Status
from containerhost.engines.spec import ContainerSpec
from containerhost.errors import ContainerHostError, EngineConflict, EngineNotFound
from containerhost.inventory.scan import HostView
from containerhost.rollback import Rollback
from onedock import attributes, rootowner
from onedock.conf import Options
from onedock.guest import Guests
from onedock.root_images import RootImages
from onedriver.actions import Call
from onedriver.errors import BadInput, DriverError, NotSupported
from onedriver.node import livemigration, vmlock
from onedriver.node.names import name
from onedriver.node.vmm import BaseVmm
from onedriver.vm import Vm

LOG = logging.getLogger(__name__)

STDOUT = 1


class Destination(livemigration.Destination):
    def fetch(self, part: Mapping[str, Any]) -> None:
        """Make it load the image that the archive has now."""
        self.ask(dict(part))


Connect = Callable[[Call], AbstractContextManager[Destination]]


class Arrival:
    """Fetch a VM's root on its destination, and start the VM.

    :param take_over: takes the VM from the source, and starts it
    """

    def __init__(self, fetch: Callable[[Mapping[str, Any]], None], take_over: Callable[[], None]) -> None:
        self.fetch = fetch
        self.start = take_over


class MigratingVmm(BaseVmm):
    """Send running VMs to other nodes, and receive them from there; a subclass has all other actions."""

    _options: Options
    _root_images: RootImages
    _guests: Guests
    _connect: Connect

    def migrate(self, call: Call) -> None:
        """Restart a VM on another node. A failure before that one takes it leaves the VM running here."""
        vm = call.vm
        livemigration.require_allowed(vm, attributes.LIVE_MIGRATION)
        own, file = self._existing(call).name, self._root_images.file(vm)
        if not self._is_running(own):
            raise DriverError(f"container {own} does not run: migrate the VM while it is off")
        spec = self._spec(vm)
        with Rollback(f"live migration of VM {vm.id}") as undo:
            undo.on_error("end it", self.recover_migration, vm.id)
            rootowner.claim(file)
            self._guests.begin_move(vm.id, file)
            with self._connect(call) as there:
                self._move(vm, spec, file, there)
        try:
            self._remove_moved(vm.id)
        except (ContainerHostError, DriverError, OSError) as error:
            LOG.error("VM %s runs on %s, and its remains here are removed later: %s", vm.id, there.node, error)

    def _move(self, vm: Vm, spec: ContainerSpec, file: Path, there: Destination) -> None:
        with Rollback(f"live migration of VM {vm.id} to {there.node}") as undo:
            with self._root_images.leaving(vm.id, file, self._require_wanted, self._options.migration_timeout
                                           ) as leaving:
                for _ in copyrounds.rounds(f"{spec.name} to {there.node}"):
                    there.fetch(leaving.copy(runs=True))
                    self._require_wanted()
                if not self._is_running(spec.name):
                    raise DriverError(f"container {spec.name} was shut down meanwhile")
                undo.on_error("let it run here", self._stay, vm, spec, file)
                self._commands.cancel(spec.name)
                self._stop_at_last(spec.name)
                self._guests.unmount_all(vm.id)
                there.fetch(leaving.copy(runs=False))
            self._require_wanted()
            self._root_images.offer(vm.id, file, leaving.image, there.node)
            try:
                there.start()
            except DriverError as error:
                if rootowner.withdraw(file) == rootowner.own_node():
                    raise
                raise DriverError(f"VM {vm.id} is on {there.node}, which did not report whether it runs: {error}"
                                  ) from error

    @staticmethod
    def _require_wanted() -> None:
        if livemigration.is_abandoned(STDOUT):
            raise DriverError("OpenNebula has cancelled the live migration")

    def _stay(self, vm: Vm, spec: ContainerSpec, file: Path) -> None:
        """Run the VM here, unless the destination has it."""
        if rootowner.withdraw(file) == rootowner.own_node():
            self._run_again(vm, spec, self._allocator.view())

    @contextlib.contextmanager
    def arriving(self, call: Call, source: str) -> Iterator[Arrival]:
        """Receive a VM from another node; on an error nothing of it stays.

        :param source: the node's name
        :raises DriverError: this host does not support it; nothing has changed
        """
        vm, own = call.vm, name(call.vm_id)
        livemigration.require_allowed(vm, attributes.LIVE_MIGRATION)
        file = self._root_images.file(vm)
        if not self._is_shared(file, source):
            raise NotSupported("use onevm migrate without --live: a live migration needs a shared system datastore, "
                               f"but this node does not share the directory {file.parent} with node {source}")
        spec = self._spec(vm)
        self._cores.preview(spec)
        self.recover_migration(vm.id)
        if self._find(own, vm) is not None:
            raise EngineConflict(f"this node has container {own} of the VM, which may be newer: check it, and delete "
                                 "it when it is not needed")
        with Rollback(f"arrival of VM {vm.id}") as undo:
            undo.on_error("remove what arrived", self.recover_migration, vm.id)
            self._guests.mark_left(vm.id)
            self._guests.begin_move(vm.id, file)
            yield Arrival(lambda part: self._root_images.fetch(vm.id, file, part),
                          lambda: self._take_over(vm, spec, file, source, undo))

    @staticmethod
    def _is_shared(file: Path, source: str) -> bool:
        try:
            return rootowner.read(file).node == source
        except BadInput:
            return False

    def _take_over(self, vm: Vm, spec: ContainerSpec, file: Path, source: str, undo: Rollback) -> None:
        undo.on_error("give it back", self._give_back, vm.id, file, source)
        rootowner.take(file)
        self._boot(vm, spec, self._allocator.view())
        self._root_images.arrived(vm.id)
        self._guests.end_move(vm.id)

    def _give_back(self, vm_id: int, file: Path, source: str) -> None:
        """Return a taken VM to its source, which starts it again. The container's changes on this node are lost."""
        if rootowner.read(file).node == rootowner.own_node():
            self.remove(vm_id)
            rootowner.claim(file, source)

    # Moves that were interrupted.

    def recover_migration(self, vm_id: int) -> bool:
        """Finish or undo an interrupted live migration of a VM. Idempotent.

        :returns: whether the VM belongs to this node; otherwise nothing of it is left here
        :raises BadInput, DriverError: this is unknown
        """
        file = self._guests.moving(vm_id)
        if file is None:
            return True
        exists = self._find(name(vm_id)) is not None
        try:
            node = rootowner.withdraw(file)
        except BadInput:
            if exists:
                raise
            node = None  # OpenNebula has ended the VM, of which only a copy was here
        if node == rootowner.own_node():
            rootowner.accept(Path(self._options.state), vm_id, rootowner.read(file).image)
        if node == rootowner.own_node() or (node is None and exists):
            self._root_images.discard_unfinished(file)
            self._guests.end_move(vm_id)
            return True
        self._remove_moved(vm_id)
        return False

    def _existing(self, call: Call) -> ContainerState:
        self.recover_migration(call.vm_id)
        try:
            return super()._existing(call)
        except EngineNotFound:
            self._require_here(self._root_images.file(call.vm))
            raise

    @staticmethod
    def _require_here(file: Path) -> None:
        """Raise DriverError if another node has the VM, which has no container here.

        :param file: the root disk. One that is missing, or not of this driver, was never migrated
        """
        with contextlib.suppress(BadInput):
            rootowner.require_here(file, rootowner.read(file))

    def _remove_moved(self, vm_id: int) -> None:
        state = self._find(name(vm_id))
        if state is not None and state.status is not Status.STOPPED:
            raise EngineConflict(f"container {state.name} is {state.status.value}: it is not removed")
        self.remove(vm_id)
        self._root_images.release(vm_id, disks=True)

    def recover_migrations(self) -> None:
        """Recover each interrupted live migration; an error is logged."""
        for vm_id in rootowner.interrupted(Path(self._options.state)):
            try:
                with vmlock.held(Path(self._options.state), vm_id, 0):
                    self.recover_migration(vm_id)
            except vmlock.Busy:
                LOG.info("Another process works on VM %s", vm_id)
            except (ContainerHostError, DriverError, OSError) as error:
                LOG.error("An interrupted live migration of VM %s is not recovered: %s", vm_id, error)

    @abc.abstractmethod
    def remove(self, vm_id: int) -> None: ...

    @abc.abstractmethod
    def _boot(self, vm: Vm, spec: ContainerSpec, view: HostView) -> None: ...
