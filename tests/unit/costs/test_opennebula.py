# SPDX-License-Identifier: Apache-2.0
"""Measure the cost of the actions and probes of OpenNebula's drivers, on LXD and on Docker."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import fixtures

import lxdone.conf
import lxdone.vmm
import onedock.conf
import onedock.vmm
from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.store import AllocationStore
from containerhost.engines.contract import Metrics
from containerhost.inventory.scan import HostView
from containerhost.linux.sysfs import Host
from onedock.imageref import ImageRef
from onedriver.actions import Call
from onedriver.node.measure import Measure
from onedriver.node.pcifilter import PciFilter
from onedriver.node.vmm import BaseVmm
from onedriver.pciaddress import from_opennebula
from onedriver.vm import Pci, Vm
from tests.fakehost import description, tree
from tests.unit.containerhost.hosts import MEMORY
from tests.unit.costs.counting import GPU_0, VF_0, VF_1, CostCase, Hardware
from tests.unit.lxdone import machines as lxd_machines
from tests.unit.nova import fakes
from tests.unit.onedock import machines as docker_machines


class NodeEngine(fakes.FakeEngine):
    """Answer also what only OpenNebula's drivers ask of an engine."""

    client = mock.Mock()

    def exists(self, name: str) -> bool:
        self._called("exists")
        return name in self.specs

    def create(self, spec: Any, beside: Any = None) -> None:
        super().create(spec)

    def wait_started(self, name: str, limit: float) -> int:
        self._called("wait_started", name)
        return 0

    def disks(self, name: str) -> dict[str, int] | None:
        if self.name == "docker":
            return None
        self._called("disks", name)
        return {"root": 1}

    def measured(self) -> tuple[Any, ...]:
        self._called("measured")
        return tuple((self._state(name), Metrics(self.statuses[name], 1, 0, 0, 0, 0, 0, {}, ())) for name in self.specs)


class Operations:
    """:cvar driver: begins the names of its operations"""

    driver: ClassVar[str]
    vmm: BaseVmm
    vm: Vm

    def setUp(self) -> None:
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir(rootdir=MEMORY)).path)
        tree.write(description.load("small"), self.directory / "host")
        self.host, self.engine = Host(self.directory / "host"), NodeEngine()
        self.engine.name = {"lxdone": "lxd", "onedock": "docker"}[self.driver]
        self.allocator = DeviceAllocator(AllocationStore(self.directory / "owners"), lambda: HostView(self.host),
                                         Hardware(self.host), self.engine.held, self.host)
        self.vm = self.vm._replace(nics=(), pcis=(self.pci(0, GPU_0), self.pci(1, VF_0)))
        self.plugged = self.pci(2, VF_1, nic_id=2, attach=True)

    @staticmethod
    def pci(number: int, address: str, **more: Any) -> Pci:
        guid = f"0200:0000:0000:000{number}"
        return Pci(number, from_opennebula(address), None, None, None, node_guid=guid, port_guid=guid, **more)

    def do(self, action: str, *more: Pci, which: str = "") -> None:
        vm = self.vm._replace(pcis=(*self.vm.pcis, *more))
        with self.costing(f"{self.driver}: {action}{which}"):
            getattr(self.vmm, action)(Call(action, {}, vm.id, "host", vm))

    def held(self) -> set[str]:
        return set(self.allocator.held_by(self.vmm._consumer(self.vm.id)))

    def test_life(self) -> None:
        self.do("deploy")
        self.assertEqual({GPU_0, VF_0}, self.held())
        self.do("attach_nic", self.plugged)
        self.assertEqual({GPU_0, VF_0, VF_1}, self.held())
        self.do("detach_nic", self.plugged)
        self.assertEqual({GPU_0, VF_0}, self.held())
        self.do("reset")
        self.assertEqual({GPU_0, VF_0}, self.held())
        self.do("cancel")
        self.assertEqual(set(), self.held())

    def test_vm_without_devices_scans_nothing(self) -> None:
        self.vm = self.vm._replace(pcis=())
        for action in ("deploy", "cancel"):
            self.do(action, which=" without devices")

    def test_monitoring(self) -> None:
        self.useFixture(fixtures.MockPatch("containerhost.privileged.Privileged.read_guest_file", return_value=None))
        self.vmm.deploy(Call("deploy", {}, self.vm.id, "host", self.vm))
        told = Measure(self.driver, self.engine, self.engine.containers, self.directory / "owners", self.directory,
                       PciFilter(), self.host, self.directory)
        for probe in ("host_system", "host_monitor", "vm_status", "vm_monitor"):
            with self.costing(f"{self.driver}: {probe}"):
                getattr(told, probe)()


class LxdoneTest(Operations, CostCase):
    driver = "lxdone"

    def setUp(self) -> None:
        self.vm = lxd_machines.machine()
        super().setUp()
        self.useFixture(fixtures.MockPatchObject(lxdone.vmm, "root_files"))
        self.useFixture(fixtures.MockPatchObject(lxdone.vmm.Vmm, "_is_packed", return_value=False))
        options = lxdone.conf.Options(state=str(self.directory), owners=str(self.directory / "owners"))
        played = SimpleNamespace(**{name: mock.MagicMock() for name in (
            "snapshots", "root_images", "writeback", "disks", "contexts", "commands", "consoles")})
        played.writeback.is_ended.return_value = False
        played.disks.provide.return_value = played.disks.parts.return_value = ()
        self.vmm = lxdone.vmm.Vmm(options, self.engine, self.allocator, **vars(played), host=self.host, ids=mock.Mock(),
                                    limit_interface=mock.Mock(), transfers=mock.Mock(), connect=mock.Mock())


class OnedockTest(Operations, CostCase):
    driver = "onedock"

    def setUp(self) -> None:
        self.vm = docker_machines.machine()
        super().setUp()
        options = onedock.conf.Options(state=str(self.directory), owners=str(self.directory / "owners"))
        played = SimpleNamespace(**{name: mock.MagicMock() for name in (
            "root_images", "snapshots", "commands", "guests", "nics")})
        played.nics.provide.return_value = ()
        played.root_images.ref.return_value = ImageRef(f"sha256:{'0' * 64}", "docker://tool:1")
        played.guests.moving.return_value = None
        self.vmm = onedock.vmm.Vmm(options, self.engine, self.allocator, **vars(played), host=self.host,
                                   connect=mock.Mock())

