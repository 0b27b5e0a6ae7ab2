# SPDX-License-Identifier: Apache-2.0
"""Run actions without an engine: no action deletes what a VM wrote and no disk has."""

from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import fixtures
import testtools

import lxdone.conf
import lxdone.vmm
from containerhost.engines import ContainerState, Status
from containerhost.errors import EngineNotFound
from containerhost.sysfs import Host
from lxdone import lcm_states
from onedriver.actions import Call
from onedriver.errors import DriverError
from onedriver.node.names import LABEL
from tests.unit.lxdone import machines


class ReplacementTest(testtools.TestCase):
    """A container is made anew only when the VM's disks have all that it wrote."""

    def setUp(self) -> None:
        super().setUp()
        base = Path(self.useFixture(fixtures.TempDir()).path)
        self.vm = machines.machine()._replace(lcm_state=lcm_states.RESTORING, nics=(), pcis=())
        options = lxdone.conf.Options(state=str(base), owners=str(base / "owners"))
        self.parts = SimpleNamespace(**{name: mock.MagicMock() for name in (
            "engine", "allocator", "snapshots", "root_images", "writeback", "disks", "contexts", "commands", "consoles",
            "ids")})
        self.useFixture(fixtures.MockPatchObject(lxdone.vmm, "root_files"))
        self.useFixture(fixtures.MockPatchObject(lxdone.vmm.Vmm, "_is_packed", return_value=False))
        self.useFixture(fixtures.MockPatchObject(lxdone.vmm.Vmm, "_boot"))
        self.vmm = lxdone.vmm.Vmm(options, **vars(self.parts), host=Host(base))
        self.parts.engine.delete.side_effect = lambda name: setattr(
            self.parts.engine.container, "side_effect", EngineNotFound(name))
        self.known(Status.FROZEN)

    def known(self, status: Status, *, current: bool = True, unsaved: bool = False, changed: bool = False,
              unsaved_disks: bool = False) -> None:
        self.parts.engine.container.return_value = ContainerState(f"one-{self.vm.id}", status,
                                                                  labels={LABEL: str(self.vm.id)})
        self.parts.writeback.is_current.return_value = current
        self.parts.writeback.is_unsaved.return_value = unsaved
        self.parts.disks.is_changed.return_value = changed
        self.parts.disks.is_unsaved.return_value = unsaved_disks

    def restore(self) -> None:
        self.vmm.restore(Call("restore", {}, self.vm.id, "host", self.vm))

    def test_frozen_container_with_unsaved_root_is_resumed(self) -> None:
        for unsaved_disks in (True, False):
            self.known(Status.FROZEN, unsaved=True, unsaved_disks=unsaved_disks)
            self.restore()
            self.parts.engine.delete.assert_not_called()
            self.parts.engine.unfreeze.assert_called_with(f"one-{self.vm.id}")

    def test_frozen_container_with_unsaved_data_is_kept_when_a_disk_was_changed(self) -> None:
        for unsaved in ({"unsaved": True}, {"unsaved_disks": True}):
            for changed in ({"changed": True}, {"current": False}):
                self.known(Status.FROZEN, **unsaved, **changed)
                error = self.assertRaises(DriverError, self.restore)
                self.assertIn("onevm recover --recreate", str(error))
                self.parts.engine.delete.assert_not_called()
                self.parts.disks.discard_all.assert_not_called()

    def test_frozen_container_whose_disks_have_everything_gives_way_to_a_changed_disk(self) -> None:
        self.known(Status.FROZEN, changed=True)
        self.restore()
        self.parts.engine.delete.assert_called_once_with(f"one-{self.vm.id}")

    def test_stopped_container_saves_its_disks_before_it_gives_way(self) -> None:
        self.known(Status.STOPPED, current=False)
        self.parts.disks.release_all.side_effect = DriverError("the copy cannot be written")
        self.assertRaises(DriverError, self.restore)
        self.parts.engine.delete.assert_not_called()
        self.parts.disks.release_all.side_effect = None
        self.restore()
        self.parts.engine.delete.assert_called_once_with(f"one-{self.vm.id}")
