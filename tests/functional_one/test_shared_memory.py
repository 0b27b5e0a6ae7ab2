# SPDX-License-Identifier: Apache-2.0
"""Memory that the VMs of a job share, on LXD: each container has user ids of its own."""

from lxdone import backend, conf
from tests import levels
from tests.functional import sharedmemorycontract
from tests.functional_one.test_actions import BOOT, CLEANUP, POWEROFF, ActionsCase


@levels.exhaustive("the contract of shared memory is the same in functional_onedock", tests=(
    "test_memory_comes_back_after_the_host_was_restarted", "test_what_a_killed_action_left_is_removed",
    "test_vm_changes_its_job_while_it_is_off"))
class SharedMemoryTest(sharedmemorycontract.SharedMemory, ActionsCase):
    def reconcile(self) -> None:
        backend.reconciler(conf.load(self.node._conf)).remove_ended()

    def test_vm_changes_its_job_while_it_is_off(self) -> None:
        machine, mate = (self.deployed(sharedmemorycontract.member(number)) for number in (1, 2))
        self.ok("cancel", machine, lcm=POWEROFF)
        self.ok("deploy", sharedmemorycontract.member(1, job="other", size=8), lcm=BOOT)
        self.shell(mate, "echo > /dev/shm/x")
        self.assertEqual("", self.shell(machine, "ls /dev/shm"))
        self.assertEqual(2, len(self.records()))
        self.ok("cancel", machine, lcm=POWEROFF)
        self.ok("deploy", machine.changed(user=""), lcm=BOOT)
        self.assertEqual(1, len(self.records()))
        for each in (machine, mate):
            self.ok("cancel", each, lcm=CLEANUP)
        self.assert_gone()
