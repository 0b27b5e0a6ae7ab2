# SPDX-License-Identifier: Apache-2.0
"""VMs of OpenNebula with an affinity, which are the same on LXD and on Docker.

The emulated host has two NUMA nodes with one core each; the kernel beneath has one memory node, so that binding memory
to another one than that cannot be seen here.
"""

from typing import Any

from containerhost.inventory import topology
from containerhost.linux.idlist import id_list
from containerhost.linux.sysfs import Host
from tests.functional_one.vms import Machine

POWEROFF, CLEANUP, BOOT, RESUME = 18, 23, 2, 20


def affine(word: str) -> str:
    return f"<HPC><AFFINITY>{word}</AFFINITY></HPC>"


class AffinityContract:
    """A test case of either driver has the rest."""

    def setUp(self) -> None:
        super().setUp()  # type: ignore[misc]
        self.all = frozenset[int]()
        for node in topology.read(Host()).nodes:
            if len(node.cpus) != 1:
                self.skipTest("the refusals are those of a host with two nodes of one core each")  # type: ignore
            self.all |= node.cpus

    def allowed(self: Any, machine: Machine, what: str = "Cpus") -> frozenset[int]:
        return id_list(Host().fields(f"/proc/{self.pid(machine)}/status")[f"{what}_allowed_list"])

    def test_vms_have_different_cores_and_one_too_many_is_refused(self: Any) -> None:
        first = self.deployed(Machine(more=affine("CPUMEM")))
        second = self.deployed(Machine(2, more=affine("cpumem")))
        self.assertEqual([1, 1], [len(self.allowed(machine)) for machine in (first, second)])
        self.assertEqual(self.all, self.allowed(first) | self.allowed(second))
        self.assertEqual(frozenset({0}), self.allowed(first, "Mems"))
        third = Machine(3, more=affine("cpumem"))
        self.node.give_disk(third)
        self.refused("socket 0 has 0 free of 1, socket 1 has 0 free of 1", "deploy", third, lcm=BOOT)
        self.assertFalse(self.engine.exists("one-3"))
        cores = self.allowed(second)
        self.ok("cancel", second, lcm=POWEROFF)
        self.refused("has 0 free of 1", "deploy", third, lcm=BOOT)
        self.ok("deploy", second, lcm=RESUME)
        self.assertEqual(cores, self.allowed(second))
        self.ok("cancel", second, lcm=CLEANUP)
        self.deployed(third)
        self.assertEqual(cores, self.allowed(third))

    def test_resize_chooses_anew_and_a_refused_one_changes_nothing(self: Any) -> None:
        machine = self.deployed(Machine(more=affine("cpumem")))
        before, pid = self.allowed(machine), self.pid(machine)
        self.refused("requested 2 cores on one socket; socket 0 has 1 free of 1", "resize",
                     machine.changed(cpu="2", vcpu=2))
        self.assertEqual(before, self.allowed(machine))
        self.ok("resize", machine.changed(cpu="2", vcpu=2, more=affine("cpu")))
        self.assertEqual((self.all, pid), (self.allowed(machine), self.pid(machine)))
        self.ok("resize", machine)
        self.assertEqual(1, len(self.allowed(machine)))

    def test_bad_affinities_are_refused(self: Any) -> None:
        pinned = ("<TOPOLOGY><PIN_POLICY>THREAD</PIN_POLICY></TOPOLOGY>"
                  "<NUMA_NODE><CPUS>0</CPUS><MEMORY_NODE_ID>0</MEMORY_NODE_ID></NUMA_NODE>")
        for machine, words in (
            (Machine(more=affine("socket")), "must be one of any, cpu, cpumem, cpumempin"),
            (Machine(more=affine("cpumem"), cpu="0.5"), "CPU=0.5 is less than VCPU=1"),
            (Machine(more=affine("any") + pinned), "HPC=[AFFINITY=any] and its other attributes contradict"),
            (Machine(more=affine("cpu") + pinned), "TOPOLOGY places it on 1 of this host's 2 NUMA nodes"),
        ):
            self.node.give_disk(machine)
            self.refused(words, "deploy", machine, lcm=BOOT)
            self.assertFalse(self.engine.exists("one-1"))
