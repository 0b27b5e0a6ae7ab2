# SPDX-License-Identifier: Apache-2.0
"""Memory that the VMs of a job share, on Docker."""

from onedock import backend, conf
from tests import levels
from tests.functional import sharedmemorycontract
from tests.functional_docker import userids
from tests.functional_docker.dockerd import Daemon
from tests.functional_onedock.base import BOOT, CLEANUP, POWEROFF, OnedockCase

REPEATED = "the drivers share this code, and the gate has it on LXD"


@levels.exhaustive(REPEATED, tests=("test_other_input_is_refused_and_leaves_nothing",))
class SharedMemoryTest(sharedmemorycontract.SharedMemory, OnedockCase):
    def reconcile(self) -> None:
        backend.recover_devices(conf.load(self.node._conf))

    def test_container_keeps_the_job_that_it_was_made_for(self) -> None:
        machine = self.deployed(sharedmemorycontract.member(1))
        self.ok("cancel", machine, lcm=POWEROFF)
        for other in (sharedmemorycontract.member(1, job="other"), machine.changed(user="")):
            self.refused("other shared memory than that of container one-1", "deploy", other, lcm=BOOT)
        self.ok("deploy", machine, lcm=BOOT)
        self.ok("cancel", machine, lcm=CLEANUP)
        self.assert_gone()


@levels.exhaustive(REPEATED, tests=(
    "test_other_input_is_refused_and_leaves_nothing", "test_memory_comes_back_after_the_host_was_restarted",
    "test_what_a_killed_action_left_is_removed", "test_a_job_has_one_and_others_have_not"))
class MappedUsersTest(sharedmemorycontract.SharedMemory, OnedockCase):
    """A daemon that maps users: all of its containers have the same ones."""

    def daemon(self) -> Daemon | None:
        return userids.daemon()

    reconcile = SharedMemoryTest.reconcile
