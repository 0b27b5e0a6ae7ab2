import testtools

from lxdone import refusals
from onedriver import actions
from onedriver.errors import DriverError, NotSupported
from onedriver.node import changes
from tests.unit.lxdone.machines import machine


def in_state(lcm: int):
    return machine(("<LCM_STATE>2</LCM_STATE>", f"<LCM_STATE>{lcm}</LCM_STATE>"))


class RefusalsTest(testtools.TestCase):
    def test_a_vm_does_not_leave_its_disk_behind(self) -> None:
        for lcm in (5, 7, 29):
            self.assertRaises(NotSupported, refusals.of_leaving, in_state(lcm))
        for lcm in (3, 6, 12, 15, 18, 23):
            refusals.of_leaving(in_state(lcm))

    def test_it_stays_for_poweroff_and_suspend_only(self) -> None:
        self.assertEqual({6, 18}, {lcm for lcm in range(80) if changes.stays(in_state(lcm))})

    def test_a_lost_disk_is_not_silently_a_new_one(self) -> None:
        for lcm in (19, 20, 21, 22, 32):
            self.assertRaises(DriverError, changes.of_a_new_container, in_state(lcm))
        changes.of_a_new_container(in_state(2))

    def test_what_is_not_supported_is_an_action(self) -> None:
        self.assertLess(set(refusals.UNSUPPORTED), set(actions.ARGUMENTS))
        self.assertRaises(NotSupported, changes.of_action, "migrate", refusals.UNSUPPORTED)
        changes.of_action("deploy", refusals.UNSUPPORTED)
