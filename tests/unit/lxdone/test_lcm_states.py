# SPDX-License-Identifier: Apache-2.0

import testtools

from lxdone import lcm_states
from onedriver.errors import DriverError
from onedriver.node import validation
from tests.unit.lxdone.machines import machine


def in_state(lcm: int):
    return machine(("<LCM_STATE>2</LCM_STATE>", f"<LCM_STATE>{lcm}</LCM_STATE>"))


class LcmStatesTest(testtools.TestCase):
    def test_it_leaves_its_host_to_be_stopped_migrated_or_undeployed(self) -> None:
        self.assertEqual({5, 7, 29}, {lcm for lcm in range(80) if lcm_states.leaves(in_state(lcm))})

    def test_its_root_is_wanted_unless_its_disk_goes_too(self) -> None:
        self.assertEqual({2, 12, 15, 23}, {lcm for lcm in range(80) if not lcm_states.keeps_root(in_state(lcm))})
        persistent = machine(("<SAVE><![CDATA[NO]]>", "<SAVE>YES"))
        self.assertTrue(persistent.disks[0].save)
        for lcm, kept in ((2, True), (12, True), (15, False), (23, False)):
            self.assertEqual(kept, lcm_states.keeps_root(persistent._replace(lcm_state=lcm)))

    def test_a_vm_that_no_container_can_be_made_of_is_ended_all_the_same(self) -> None:
        for lcm in (2, 12, 15, 23):
            self.assertFalse(lcm_states.keeps_root(in_state(lcm)._replace(disks=())))

    def test_it_stays_for_poweroff_and_suspend_only(self) -> None:
        self.assertEqual({6, 18}, {lcm for lcm in range(80) if validation.stays(in_state(lcm))})

    def test_a_lost_disk_is_not_silently_a_new_one(self) -> None:
        for lcm in (19, 20, 21, 22, 32, 35):
            self.assertRaises(DriverError, validation.of_a_new_container, in_state(lcm))
            validation.of_a_new_container(in_state(lcm), kept=True)
        validation.of_a_new_container(in_state(2))

