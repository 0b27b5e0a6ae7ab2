# SPDX-License-Identifier: Apache-2.0
"""Upgrade and downgrade of a node with a VM that runs, on the real Docker."""

from tests import levels
from tests.functional import upgradecontract
from tests.functional_onedock.base import OnedockCase


@levels.exhaustive("tests of records of other releases (tests/unit) and each action on its own stay")
class UpgradeTest(upgradecontract.UpgradeContract, OnedockCase):
    pass
