# SPDX-License-Identifier: Apache-2.0
"""Upgrade and downgrade of a node with a VM that runs, on the real LXD."""

from tests import levels
from tests.functional import upgradecontract
from tests.functional_one.test_actions import ActionsCase


@levels.exhaustive("tests of records of other releases (tests/unit) and each action on its own stay")
class UpgradeTest(upgradecontract.UpgradeContract, ActionsCase):
    pass
