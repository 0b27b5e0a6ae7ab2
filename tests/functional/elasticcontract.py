# SPDX-License-Identifier: Apache-2.0
"""VMs of OpenNebula whose cores come and go, which are the same on LXD and on Docker."""

import json
from pathlib import Path
from typing import Any

import fixtures

from containerhost.elastic.service import ManagedEngine, Options, Service
from containerhost.elastic.state import StateFile
from containerhost.engines import bounds
from containerhost.engines.capabilities import LiveSizes
from containerhost.guest import resources
from containerhost.guest.guestfiles import GuestFiles
from containerhost.guest.guestnotice import GuestNotice
from containerhost.linux.idlist import id_list
from containerhost.linux.sysfs import Host
from containerhost.privileged import Privileged
from tests.conformance.engine.elastic import FOLLOW
from tests.functional_one.vms import Machine
from tests.waiting import await_that

BOOT, POWEROFF, RESUME = 2, 18, 20


def elastic(text: str = "cores=1", number: int = 1, **more: Any) -> Machine:
    return Machine(number, more=f"<HPC><ELASTIC>{text}</ELASTIC></HPC>", **{"cpu": "2", "vcpu": 2, **more})


class ElasticContract:
    """A test case of either driver has the rest."""

    def sizes(self) -> LiveSizes[Any]:
        raise NotImplementedError

    def setUp(self) -> None:
        super().setUp()  # type: ignore[misc]
        if len(id_list(Host().text("/sys/devices/system/cpu/online"))) != 2:
            self.skipTest("the sizes are those of a host with two cores")  # type: ignore[attr-defined]

    def service(self: Any) -> Service:
        self.files = GuestFiles(self.engine.pid, Privileged())
        managed = ManagedEngine(self.engine, self.sizes(), GuestNotice(self.files, 0))
        state = Path(self.useFixture(fixtures.TempDir()).path)
        return Service({"it": managed}, Options(locks=self.node.owners), StateFile(state))

    def cores(self: Any, machine: Machine) -> int:
        return len(id_list(Host().fields(f"/proc/{self.pid(machine)}/status")["Cpus_allowed_list"]))

    def document(self: Any, machine: Machine) -> dict[str, Any]:
        return json.loads(self.engine.container(machine.name).labels[resources.LABEL])

    def follows(self: Any, machine: Machine) -> None:
        self.engine.execute(machine.name, ["sh", "-c", f"({FOLLOW}) > /dev/null 2>&1 &"], b"", timeout=60)
        await_that(lambda: self.files.read(machine.name, resources.ACKNOWLEDGED), "the guest listens")

    def rounds_until(self: Any, service: Service, machine: Machine, count: int) -> None:
        def done() -> bool:
            service.round()
            return self.cores(machine) == count and not service.steps

        await_that(done, f"{machine.name} has {count} cores", pause=0.2)

    def test_vms_trade_cores_and_a_resize_of_the_owners_own_asks_the_guest_too(self: Any) -> None:
        first, service = self.deployed(elastic()), self.service()
        self.rounds_until(service, first, 2)
        self.follows(first)
        second = self.deployed(elastic(number=2))
        self.rounds_until(service, second, 1)
        self.assertEqual(1, self.cores(first))
        self.assertEqual(1, service.done["change", "acknowledged"])
        generation, pid = self.document(first)["generation"], self.pid(first)
        self.ok("cancel", second, lcm=23)
        self.rounds_until(service, first, 2)
        smaller = elastic(cpu="1", vcpu=1)
        self.ok("resize", smaller)
        told = json.loads(self.files.read(first.name, resources.FILE))
        self.assertEqual((1, None, pid), (told["cpus"]["count"], told["announced"], self.pid(first)))
        self.assertEqual(told, self.document(first))
        self.assertGreater(told["generation"], generation)
        await_that(lambda: json.loads(self.files.read(first.name, resources.ACKNOWLEDGED))["generation"]
                   == told["generation"], "the guest follows")
        self.rounds_until(service, first, 1)
        self.ok("resize", first)
        self.rounds_until(service, first, 2)

    def test_bounds_that_cannot_be_are_refused(self: Any) -> None:
        pinned = ("<TOPOLOGY><PIN_POLICY>THREAD</PIN_POLICY></TOPOLOGY>"
                  "<NUMA_NODE><CPUS>0</CPUS><MEMORY_NODE_ID>0</MEMORY_NODE_ID></NUMA_NODE>")
        hpc = "<HPC><ELASTIC>cores=1</ELASTIC></HPC>"
        for machine, words in ((elastic("cores=3"), "from 3 to 2"), (elastic("cores=1-4"), "at most 2"),
                               (elastic("cores"), "but must have some of cores=LEAST-MOST"),
                               (elastic(cpu="1"), "claims only CPU=1"),
                               (elastic().changed(more=hpc + pinned), "THREAD")):
            self.node.give_disk(machine)
            self.refused(words, "deploy", machine, lcm=BOOT)
            self.assertFalse(self.engine.exists("one-1"))
        machine = self.deployed(elastic())
        before = self.engine.container("one-1").labels
        self.refused("from 2 to 1", "resize", elastic("cores=2", cpu="1", vcpu=1))
        self.assertEqual((2, before), (self.cores(machine), self.engine.container("one-1").labels))

    def test_owner_who_changes_his_mind(self: Any) -> None:
        """HPC may be written while the VM runs; it counts from the next resize or start on."""
        machine, service = self.deployed(Machine(cpu="2", vcpu=2)), self.service()
        service.round()
        self.assertEqual([], service.plan())
        self.ok("resize", elastic())
        self.assertEqual(["it/one-1"], [row["container"] for row in service.plan()])
        self.ok("resize", machine)
        self.assertNotIn(bounds.LABEL, self.engine.container("one-1").labels)
        self.assertEqual([], service.plan())
        self.ok("cancel", machine, lcm=POWEROFF)
        self.ok("deploy", elastic(), lcm=RESUME)
        self.rounds_until(service, machine, 2)
        self.assertEqual([0, 1], self.document(machine)["cpus"]["cores"])
