# SPDX-License-Identifier: Apache-2.0
"""VMs on LXD whose cores and GPUs come and go."""

import json
from pathlib import Path

import fixtures

from containerhost.allocation.states import State
from containerhost.allocation.store import AllocationStore
from containerhost.devices.model import Device
from containerhost.elastic.gpus import EngineGpus
from containerhost.elastic.service import ManagedEngine, Options, Service
from containerhost.elastic.state import StateFile
from containerhost.engines.capabilities import LiveSizes
from containerhost.engines.lxd.client import VersionedInstance
from containerhost.engines.lxd.live import Live
from containerhost.guest import resources
from containerhost.guest.guestfiles import GuestFiles
from containerhost.guest.guestnotice import GuestNotice
from containerhost.inventory.taints import TaintFile
from containerhost.linux.sysfs import Host
from containerhost.privileged import Privileged
from tests import levels
from tests.fakehost.control import FakeHostControl
from tests.functional import elasticcontract
from tests.functional_one.test_actions import ActionsCase
from tests.functional_one.vms import Machine


@levels.exhaustive("units of the elastic service have it", tests=(
    "test_owner_who_changes_his_mind", "test_bounds_that_cannot_be_are_refused"))
class ElasticTest(elasticcontract.ElasticContract, ActionsCase):
    def sizes(self) -> LiveSizes[VersionedInstance]:
        return Live(self.engine, Privileged())


@levels.exhaustive("a VM that goes on without its GPU stays",
                   tests=("test_detached_by_its_owner_while_it_is_repaired",))
class ElasticGpusTest(ActionsCase):
    def setUp(self) -> None:
        super().setUp()
        for gpu in self.gpus:
            self.addCleanup(TaintFile(Host()).untaint, gpu.id)
        self.useFixture(fixtures.MockPatch("containerhost.elastic.gpurounds.WELL_TIME", 0.0))
        self.kept, self.taken = self.gpus
        live = Live(self.engine, Privileged())
        managed = ManagedEngine(self.engine, live, GuestNotice(GuestFiles(self.engine.pid, Privileged()), 0),
                                EngineGpus(self.engine, live, Privileged(), self.node.owners))
        home = Path(self.useFixture(fixtures.TempDir()).path)
        self.service = Service({"lxd": managed}, Options(locks=self.node.owners), StateFile(home))

    def machine(self, text: str = "gpus=1", *devices: Device, **more: str) -> Machine:
        return Machine(devices=devices or tuple(self.gpus), more=f"<HPC><ELASTIC>{text}</ELASTIC></HPC>", **more)

    def states(self) -> dict[str, State]:
        return {name: record.state for name, record in AllocationStore(self.node.owners).records().items()}

    def has(self, machine: Machine) -> tuple[set[str], set[str]]:
        """Return the GPUs that the VM's container is told of, and the nodes that it sees."""
        document = json.loads(self.engine.container(machine.name).labels[resources.LABEL])
        nodes = {node for node in ("nvidia0", "nvidia1") if self.inside_status(machine, "ls", f"/dev/{node}") == 0}
        return {device["id"] for device in document["devices"]}, nodes

    def inside_status(self, machine: Machine, *command: str) -> int:
        return self.engine.execute(machine.name, command, b"", timeout=60).status

    def test_vm_goes_on_without_gpu_that_is_repaired(self) -> None:
        machine = self.deployed(self.machine())
        self.assertEqual(({gpu.id for gpu in self.gpus}, {"nvidia0", "nvidia1"}), self.has(machine))
        TaintFile(Host()).taint(self.taken.id, "fan is replaced")
        self.service.round()
        self.assertEqual(({self.kept.id}, {"nvidia0"}), self.has(machine))
        self.ok("resize", self.machine(cpu="2"))
        self.assertEqual(({self.kept.id}, {"nvidia0"}), self.has(machine))
        self.assertEqual({self.kept.id: State.ATTACHED, self.taken.id: State.DETACHED}, self.states())
        self.ok("reboot", machine)
        self.assertEqual(({self.kept.id}, {"nvidia0"}), self.has(machine))
        self.node.probe("vm/monitor")
        self.assertEqual(State.DETACHED, self.states()[self.taken.id])
        control = FakeHostControl.from_environment()
        control.remove(self.taken.address)
        try:
            self.service.round()
            self.ok("reset", machine)  # the card is out of the host
            self.assertEqual(({self.kept.id}, {"nvidia0"}), self.has(machine))
        finally:
            control.restore(self.taken.address)
        TaintFile(Host()).untaint(self.taken.id)
        self.service.round()
        self.assertEqual(({gpu.id for gpu in self.gpus}, {"nvidia0", "nvidia1"}), self.has(machine))
        TaintFile(Host()).taint(self.taken.id, "fan is replaced")
        self.service.round()
        self.ok("cancel", machine, lcm=23)
        self.assertEqual({}, self.states())

    def test_detached_by_its_owner_while_it_is_repaired(self) -> None:
        machine = self.deployed(self.machine("gpus=0", self.kept))
        more = self.machine("gpus=0").changed(attach="pci")
        self.ok("attach_nic", more, "02:00:0a:63:01:0c", "-", "-", "dummy", "one-1-12")
        self.service.round()
        self.assertEqual(({gpu.id for gpu in self.gpus}, {"nvidia0", "nvidia1"}), self.has(machine))
        TaintFile(Host()).taint(self.taken.id, "fan is replaced")
        self.service.round()
        self.assertEqual(({self.kept.id}, {"nvidia0"}), self.has(machine))
        self.ok("detach_nic", more, "02:00:0a:63:01:0c")
        self.assertEqual({self.kept.id: State.ATTACHED}, self.states())

    @levels.exhaustive("tests.functional.containerhost.test_lxd_elastic_gpus has the service")
    def test_bounds_that_cannot_be_are_refused(self) -> None:
        for text, words in (("gpus=3", "2 whole GPUs"), ("gpus=1-3", "2 whole GPUs"), ("gpus", "gpus=LEAST")):
            machine = self.machine(text)
            self.node.give_disk(machine)
            self.refused(words, "deploy", machine, lcm=2)
            self.assertFalse(self.engine.exists("one-1"))
