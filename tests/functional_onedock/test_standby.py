from tests.functional_one.standby import StandbyTests
from tests.functional_onedock.base import OnedockCase


class StandbyTest(StandbyTests, OnedockCase):
    """onedock's."""

    inline = False
