# SPDX-License-Identifier: Apache-2.0
"""Run actions without an engine; give devices that are NICs the context's addresses, down to the record."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import fixtures
import testtools

import onedock.conf
import onedock.vmm
from containerhost import vendors
from containerhost.devices.model import LinkLayer
from containerhost.engines.contract import ContainerState, Status
from containerhost.engines.docker import config
from containerhost.engines.docker.record import Netdev
from containerhost.engines.spec import IpConfig
from containerhost.errors import DeviceInUse, DeviceUnhealthy, EngineError, EngineNotFound
from containerhost.inventory.scan import scan
from containerhost.linux.sysfs import Host
from onedock import lcm_states
from onedock.guest import Guests
from onedock.imageref import ImageRef
from onedock.nics import Nics
from onedock.vmm import with_addresses
from onedriver.actions import Call
from onedriver.errors import DriverError
from onedriver.node import devices
from onedriver.node.names import LABEL
from onedriver.pciaddress import from_opennebula
from onedriver.vm import Nic, Pci
from tests.fakehost import description, tree
from tests.unit.onedock.machines import machine

MAC = "02:00:0a:63:00:07"  # of OpenNebula's address range; no InfiniBand function has it


class DeviceAddressesTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        root = Path(self.useFixture(fixtures.TempDir()).path)
        tree.write(description.load("small"), root)
        self.inventory = scan(Host(root))
        self.function = next(device for device in self.inventory.devices
                             if device.link_layer is LinkLayer.INFINIBAND and device.vf_index is not None)

    def setup_of(self, **context: str) -> set[IpConfig | None]:
        vm = machine()._replace(context=context)
        pci = Pci(4, from_opennebula(self.function.id), None, None, None, nic_id=2, mac=MAC)
        (request,) = devices.requests([pci], self.inventory, onedock.conf.Options())
        chosen = with_addresses(vm, pci, request)
        record = config.part_record(vendors.of(self.function).grant(self.function, chosen.options))
        self.assertEqual({Netdev(self.function.netdev or "", "ib2")}, record.netdevs)
        return {netdev.setup for netdev in record.netdevs}

    def test_infiniband_function_gets_the_address_of_its_nic(self) -> None:
        self.assertEqual({IpConfig(("10.9.0.7/16",))},
                         self.setup_of(PCI4_MAC=MAC, PCI4_IP="10.9.0.7", PCI4_MASK="255.255.0.0"))

    def test_device_that_the_context_does_not_know_is_left_to_the_container(self) -> None:
        self.assertEqual({None}, self.setup_of(ETH0_MAC="02:00:0a:63:00:01", ETH0_IP="10.9.0.1"))


class VmmCase(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        base = Path(self.useFixture(fixtures.TempDir()).path)
        self.vm = machine()._replace(nics=(), pcis=())
        self.parts = SimpleNamespace(**{name: mock.MagicMock() for name in (
            "engine", "allocator", "root_images", "snapshots", "commands", "guests", "nics", "connect")})
        self.own = f"one-{self.vm.id}"
        self.known(Status.STOPPED)
        self.parts.engine.wait_started.return_value = None
        self.parts.guests.moving.return_value = None
        self.parts.root_images.ref.return_value = ImageRef(f"sha256:{'0' * 64}", "docker://tool:1")
        self.parts.snapshots.images.return_value = {"snap-0": "image"}
        self.parts.nics.parts.return_value = self.parts.nics.provide.return_value = ()
        self.parts.allocator.acquire.return_value = ()
        self.call = Call("snapshot_revert", {"snapshot": "snap-0"}, self.vm.id, "host", self.vm)
        self.vmm = onedock.vmm.Vmm(onedock.conf.Options(state=str(base), owners=str(base / "owners")),
                                   **vars(self.parts), host=Host(base))

    def gone(self) -> None:
        self.parts.engine.container.side_effect = EngineNotFound(self.own)

    def known(self, status: Status) -> None:
        self.parts.engine.container.side_effect = None
        self.parts.engine.container.return_value = ContainerState(self.own, status, labels={LABEL: str(self.vm.id)})


class EndTest(VmmCase):
    def setUp(self) -> None:
        super().setUp()
        self.parts.allocator.release.return_value = ()

    def test_vm_has_ended_when_only_its_images_cannot_be_released(self) -> None:
        self.parts.root_images.release.side_effect = EngineError("docker did not answer")
        self.parts.engine.delete.side_effect = lambda name: self.gone()
        vm = self.vm._replace(lcm_state=lcm_states.SHUTDOWN)
        self.vmm.cancel(Call("cancel", {}, vm.id, "host", vm))
        self.parts.engine.delete.assert_called_once_with(self.own)

    def test_transfer_driver_releases_images_that_an_end_left(self) -> None:
        self.gone()
        for follows in (lambda: self.vmm.drop(self.vm.id), lambda: self.vmm.leave(self.vm.id, 0)):
            self.parts.root_images.release.reset_mock()
            follows()
            self.parts.root_images.release.assert_called_once_with(self.vm.id)
            self.parts.root_images.release.side_effect = EngineError("docker did not answer")
            self.assertRaises(EngineError, follows)
            self.parts.root_images.release.side_effect = None

    def test_container_of_others_with_the_name_stays_and_keeps_no_vm_from_its_end(self) -> None:
        self.parts.engine.container.return_value = ContainerState(self.own, Status.RUNNING, labels={})
        self.vmm.drop(self.vm.id)
        self.parts.engine.delete.assert_not_called()
        self.parts.commands.cancel.assert_not_called()
        self.parts.root_images.release.assert_called_once_with(self.vm.id)
        self.parts.allocator.release.assert_called_once()


class LeavingTest(VmmCase):
    """A VM that leaves its host, with its real directory there; the end of what belongs to its container fails."""

    def setUp(self) -> None:
        super().setUp()
        base = Path(self.vmm._options.state)
        self.volumes, self.home = mock.Mock(), base / self.own
        self.useFixture(fixtures.MockPatchObject(Guests, "_volumes", return_value=self.volumes))
        self.guests = self.vmm._guests = Guests(base, base, lambda: (os.getuid(), os.getgid()))
        self.guests.write(self.vm)
        self.volumes.mounted.return_value = frozenset()
        self.volumes.remove.side_effect = [DeviceInUse("a backup reads it"), None]
        self.parts.allocator.release.return_value = ()
        self.parts.engine.delete.side_effect = lambda name: self.gone()

    def test_what_it_wrote_is_kept_and_its_end_can_be_repeated(self) -> None:
        vm = self.vm._replace(lcm_state=29)
        self.end_fails_once(lambda: self.vmm.shutdown(Call("shutdown", {}, vm.id, "host", vm)))

    def test_it_can_be_repeated_by_the_transfer_driver(self) -> None:
        self.end_fails_once(lambda: self.vmm.leave(self.vm.id, 0))

    def end_fails_once(self, leave: Callable[[], None]) -> None:
        self.assertRaises(DeviceInUse, leave)
        leave()
        self.assertFalse(self.home.exists())
        self.parts.root_images.keep.assert_called_once()

    def test_what_docker_lost_is_not_taken_for_kept(self) -> None:
        """The VM moved here, so that its disk has what it wrote until then."""
        self.parts.root_images.is_kept.return_value = True
        vm = self.vm._replace(lcm_state=32, disks=self.vm.disks[:1])
        call = Call("deploy", {}, vm.id, "host", vm)
        self.guests.remove = mock.Mock()  # type: ignore[method-assign]  (it is killed)
        shutil.rmtree(self.home)
        self.gone()
        self.parts.engine.create.side_effect = EngineError("the host has no power")
        for _ in range(2):
            self.assertRaises(EngineError, self.vmm.deploy, call)
        self.parts.engine.create.side_effect = lambda *args: self.known(Status.STOPPED)
        self.vmm.deploy(call)
        self.gone()
        self.assertIn("no longer on this host", str(self.assertRaises(DriverError, self.vmm.deploy, call)))
        self.assertIn("data root", str(self.assertRaises(DriverError, self.vmm.leave, self.vm.id, 0)))


class SpoiledContextTest(VmmCase):
    """The owner of a VM may change its context at any time."""

    def test_suspended_vm_goes_on(self) -> None:
        self.known(Status.FROZEN)
        vm = self.vm._replace(nics=(Nic(1, MAC, "br0", f"{self.own}-1"),), lcm_state=21,
                              context={"ETH1_MAC": MAC, "ETH1_IP": "mine"})
        self.vmm._nics = Nics(mock.Mock(**{"mark.return_value": None, "marks.return_value": False}))
        self.vmm.restore(Call("restore", {}, vm.id, "host", vm))
        self.parts.engine.unfreeze.assert_called_once_with(self.own)

    def test_nic_goes(self) -> None:
        nic = Nic(1, MAC, "br0", f"{self.own}-1", attach=True)
        vm = self.vm._replace(nics=(nic,), context={"ETH1_MAC": MAC, "ETH1_IP": "mine"})
        self.vmm.detach_nic(Call("detach_nic", {}, vm.id, "host", vm))
        (_, part), _ = self.parts.engine.detach.call_args
        self.assertEqual(("eth1", "oi-1-1"), (part.name, part.parent))
        self.parts.nics.remove_one.assert_called_once()


class RevertTest(VmmCase):
    def test_vm_that_an_interrupted_revert_left_off_runs_when_it_is_repeated(self) -> None:
        self.vmm.snapshot_revert(self.call)
        self.parts.engine.start.assert_called_once_with(self.own)
        self.parts.engine.create.side_effect = EngineError("no room")
        self.assertRaises(EngineError, self.vmm.snapshot_revert, self.call)
        self.assertEqual(2, self.parts.engine.start.call_count)

    def test_container_with_unhealthy_device_is_not_stopped_to_start_it_again(self) -> None:
        self.known(Status.RUNNING)
        self.useFixture(fixtures.MockPatchObject(onedock.vmm.Vmm, "_all_requests", return_value=("a GPU",)))
        self.parts.allocator.preview.side_effect = DeviceUnhealthy("it fell off the bus")
        for action in (self.vmm.snapshot_revert, self.vmm.reboot):
            self.assertRaises(DeviceUnhealthy, action, self.call)
        self.parts.engine.stop.assert_not_called()
