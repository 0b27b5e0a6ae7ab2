# SPDX-License-Identifier: Apache-2.0
"""Run actions without an engine: no action deletes what a VM wrote and no disk has."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import fixtures
import testtools

import lxdone.conf
import lxdone.vmm
from containerhost.engines.contract import ContainerState, Status
from containerhost.errors import DeviceNotFound, DeviceUnhealthy, EngineBusy, EngineError, EngineNotFound
from containerhost.guest import resources
from containerhost.linux.sysfs import Host
from lxdone import lcm_states
from lxdone.disk import images
from lxdone.disk.diskformat import Format
from onedriver.actions import Call
from onedriver.errors import BadInput, DriverError
from onedriver.node import niclimits
from onedriver.node.names import LABEL
from onedriver.vm import MIB
from tests.unit.lxdone import machines


class VmmCase(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        base = Path(self.useFixture(fixtures.TempDir()).path)
        self.vm = machines.machine()._replace(lcm_state=lcm_states.RESTORING, nics=(), pcis=())
        options = lxdone.conf.Options(state=str(base), owners=str(base / "owners"))
        self.parts = SimpleNamespace(**{name: mock.MagicMock() for name in (
            "engine", "allocator", "snapshots", "root_images", "writeback", "disks", "contexts", "commands", "consoles",
            "ids", "limit_interface", "transfers", "connect")})
        self.useFixture(fixtures.MockPatchObject(lxdone.vmm, "root_files"))
        self.useFixture(fixtures.MockPatchObject(lxdone.vmm.Vmm, "_is_packed", return_value=False))
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


class RevertTest(VmmCase):
    def test_vm_that_an_interrupted_revert_left_off_runs_when_it_is_repeated(self) -> None:
        self.known(Status.STOPPED)
        self.parts.snapshots.names.return_value = {"snap-0": "snap-0"}
        self.parts.allocator.acquire.return_value = ()
        call = Call("snapshot_revert", {"snapshot": "snap-0"}, self.vm.id, "host", self.vm)
        self.vmm.snapshot_revert(call)
        self.parts.engine.start.assert_called_once_with(f"one-{self.vm.id}")
        self.parts.snapshots.restore.side_effect = EngineError("no room")
        self.assertRaises(EngineError, self.vmm.snapshot_revert, call)
        self.assertEqual(2, self.parts.engine.start.call_count)

    def test_container_with_unhealthy_device_is_not_stopped_to_start_it_again(self) -> None:
        self.known(Status.RUNNING)
        self.useFixture(fixtures.MockPatchObject(lxdone.vmm.Vmm, "_all_requests", return_value=("a GPU",)))
        self.parts.snapshots.names.return_value = ("snap-0",)
        self.parts.allocator.preview.side_effect = DeviceUnhealthy("it fell off the bus")
        for action in (self.vmm.snapshot_revert, self.vmm.reboot):
            call = Call("", {"snapshot": "snap-0"}, self.vm.id, "host", self.vm)
            self.assertRaises(DeviceUnhealthy, action, call)
        self.parts.engine.stop.assert_not_called()


class ReplacementTest(VmmCase):
    """A container is made anew only when the VM's disks have all that it wrote."""

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(fixtures.MockPatchObject(lxdone.vmm.Vmm, "_boot"))

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


class AttachDiskTest(VmmCase):
    def test_disk_whose_place_another_has_taken_goes_before_that_comes(self) -> None:
        """oned did not get the answer to its attachment, and gave its number to the next one."""
        base = Path(self.vmm._options.state)
        disks = self.vmm._disks = images.Images(base, base / "datastores", lambda name: None, 30)
        file, directory = base / "datastores/0/1/disk.1", base / "disks/one-1/1"
        for each in (file.parent, directory):
            each.mkdir(parents=True)
        file.write_bytes(bytes(1 << 20))
        disks._write(directory, images.Record(str(file), copied=False, read_only=False))
        calls, mounted = self.parts.engine.mock_calls, [True]
        self.useFixture(fixtures.MockPatch("os.path.ismount", side_effect=lambda path: mounted[0]))
        mounts = self.useFixture(fixtures.MockPatchObject(images, "idmounts")).mock
        mounts.unmount.side_effect = lambda path: mounted.clear() or mounted.append(False)
        mounts.mount.side_effect = lambda *args: mounted.clear() or mounted.append(True)
        self.useFixture(fixtures.MockPatchObject(images, "mountedfs"))
        self.useFixture(fixtures.MockPatchObject(images, "growth"))
        loop = self.useFixture(fixtures.MockPatchObject(images, "loops")).mock
        loop.belongs.return_value, loop.existing.return_value = False, None
        self.useFixture(fixtures.MockPatchObject(images, "filesystems"))
        self.useFixture(fixtures.MockPatchObject(images.diskformat, "of", return_value=Format.EXT))
        disk = self.vm.disks[1]._replace(attach=True)
        call = Call("attach_disk", {}, self.vm.id, "host", self.vm._replace(disks=(self.vm.disks[0], disk)))
        self.known(Status.RUNNING)
        self.vmm.attach_disk(call)
        self.assertEqual(["detach", "attach"], [name for name, _, _ in calls if name in ("attach", "detach")])
        mounts.mount.assert_called_once()
        loop.belongs.return_value = True
        self.vmm.attach_disk(call)
        mounts.mount.assert_called_once()


class ResizeDiskTest(VmmCase):
    def test_root_grows_and_nothing_else_of_an_elastic_vm_changes(self) -> None:
        vm = self.vm._replace(hpc={"ELASTIC": "cores=1-2"})
        spec = self.vmm._spec(vm)
        shrunk = dataclasses.replace(spec, cpu=dataclasses.replace(spec.cpu, count=1, cores=frozenset({0})))
        self.parts.engine.container.return_value = ContainerState(
            spec.name, Status.RUNNING, labels=resources.with_document(shrunk).labels)
        self.parts.engine.metrics.return_value.memory = 0
        self.parts.engine.pid.return_value = None  # its guest is not notified
        call = Call("resize_disk", {"disk_id": "0", "size": "512"}, vm.id, "host", vm)
        self.vmm.resize_disk(call)
        (_, made), _ = self.parts.engine.set_limits.call_args
        self.assertEqual((frozenset({0}), 512 * MIB), (made.cpu.cores, made.root.size))
        self.parts.engine.set_limits.reset_mock()
        with mock.patch("onedriver.node.vmm.resizing", side_effect=EngineBusy("the elastic service changes it")):
            self.assertRaises(EngineBusy, self.vmm.resize_disk, call)
        self.parts.engine.set_limits.assert_not_called()


class EndTest(VmmCase):
    def test_vm_has_ended_when_only_its_image_cannot_be_removed(self) -> None:
        self.parts.root_images.release.side_effect = EngineError("the image is in use")
        self.parts.allocator.release.return_value = ()
        vm = self.vm._replace(lcm_state=12)
        self.vmm.cancel(Call("cancel", {}, vm.id, "host", vm))
        self.parts.engine.delete.assert_called_once_with(f"one-{vm.id}")
        self.parts.writeback.end.assert_called_once()


class NicLimitsTest(VmmCase):
    def test_limits_of_a_nic_reach_its_interface(self) -> None:
        self.vmm.limit_nic(*niclimits.parsed(["one-1", "3", "1250", "0"]))
        self.parts.limit_interface.assert_called_once_with("one-1", "eth3", 10000000, None)

    def test_kernel_that_cannot_limit_is_named_with_the_remedy_first(self) -> None:
        self.parts.limit_interface.side_effect = EngineError("Failed to create ingress tc qdisc: exit status 2")
        error = str(self.assertRaises(DriverError, self.vmm.limit_nic, 1, 3, 1000, None))
        self.assertTrue(error.startswith("run `modprobe -a "), error)
        self.parts.limit_interface.side_effect = EngineError("no answer")
        self.assertRaises(EngineError, self.vmm.limit_nic, 1, 3, 1000, None)

    def test_other_arguments_are_refused(self) -> None:
        for argv in ([], ["one-1", "3", "1"], ["one-1", "3", "1", "-1"], ["two-1", "3", "1", "1"]):
            self.assertRaises(BadInput, niclimits.parsed, argv)


class DeletionTest(VmmCase):
    def test_boot_records_its_disk_before_it_makes_anything(self) -> None:
        self.parts.engine.container.side_effect = EngineNotFound("one-1")
        self.parts.writeback.announce.side_effect = KeyboardInterrupt  # killed just then
        call = Call("deploy", {}, self.vm.id, "host", self.vm._replace(lcm_state=2))
        self.assertRaises(KeyboardInterrupt, self.vmm.deploy, call)
        for made in (self.parts.allocator.acquire, self.parts.contexts.write, self.parts.engine.create):
            made.assert_not_called()

    def test_refused_boot_keeps_the_record_of_the_killed_one_before(self) -> None:
        self.parts.engine.container.side_effect = EngineNotFound("one-1")
        self.useFixture(fixtures.MockPatchObject(lxdone.vmm.Vmm, "_requests", side_effect=DeviceNotFound("a GPU")))
        call = Call("deploy", {}, self.vm.id, "host", self.vm._replace(lcm_state=2))
        self.assertRaises(DeviceNotFound, self.vmm.deploy, call)
        self.parts.writeback.end.assert_not_called()
        self.parts.writeback.announce.assert_not_called()

    def test_record_outlasts_everything_else_that_a_removal_removes(self) -> None:
        calls: list[str] = []
        for part, name in (("engine", "delete"), ("allocator", "release"), ("disks", "release_all"),
                           ("contexts", "clear"), ("writeback", "end"), ("contexts", "remove")):
            getattr(getattr(self.parts, part), name).side_effect = lambda *args, name=name, **more: calls.append(name)
        self.parts.allocator.release.side_effect = lambda *args: calls.append("release") or ()
        self.parts.engine.container.side_effect = EngineNotFound("one-1")
        self.vmm.remove(self.vm.id)
        self.assertEqual(["delete", "release", "release_all", "clear", "end", "remove"], calls)

    def test_boot_of_a_vm_that_is_deleted_meanwhile_leaves_no_container(self) -> None:
        self.parts.engine.container.side_effect = EngineNotFound("one-1")
        self.parts.disks.provide.return_value = self.parts.disks.parts.return_value = ()
        self.parts.engine.root_ids.return_value = (0, 0)
        self.parts.allocator.release.return_value = ()
        call = Call("deploy", {}, self.vm.id, "host", self.vm._replace(lcm_state=2))
        self.parts.writeback.is_ended.return_value = True
        self.assertIn("was deleted", str(self.assertRaises(DriverError, self.vmm.deploy, call)))
        self.parts.engine.delete.assert_called_once_with("one-1")
        self.parts.writeback.is_ended.return_value = False
        self.assertEqual("one-1", self.vmm.deploy(call))
        self.parts.engine.delete.assert_called_once_with("one-1")
