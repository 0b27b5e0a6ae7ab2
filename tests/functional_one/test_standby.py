from tests.functional_one.standby import StandbyTests
from tests.functional_one.test_actions import ActionsCase


class StandbyTest(StandbyTests, ActionsCase):
    """lxdone's."""
