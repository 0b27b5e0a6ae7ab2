# SPDX-License-Identifier: Apache-2.0
"""Test what VMs on Docker are told of their resources."""

from tests import levels
from tests.functional import noticecontract
from tests.functional_one.vms import Machine
from tests.functional_onedock.base import OnedockCase

REPEATED = "the drivers share this code, and the gate has it on LXD"


@levels.exhaustive(REPEATED, tests=(
    "test_vm_is_told_of_each_resize_and_asked_before_it_shrinks",
    "test_announcement_of_a_resize_that_is_refused_is_withdrawn",
    "test_monitoring_tells_a_vm_what_is_wrong_with_its_devices",
))
class NoticeTest(noticecontract.NoticeContract, OnedockCase):
    def test_vm_is_told_from_its_start_on(self) -> None:
        machine = self.deployed(Machine(devices=(self.gpus[0],)))
        self.assert_told(machine, self.gpus[0].id)
        self.assertIn("tmpfs /run/containerhost tmpfs rw,nosuid,nodev,noexec", self.inside(
            machine, "cat", "/proc/mounts"))
        self.ok("reboot", machine)
        self.assert_told(machine, self.gpus[0].id)
