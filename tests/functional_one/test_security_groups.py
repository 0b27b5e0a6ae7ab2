# SPDX-License-Identifier: Apache-2.0
"""Security groups of VMs on LXD."""

from tests import levels
from tests.functional import securitygroups
from tests.functional_one.test_actions import ActionsCase


@levels.exhaustive("functional_onedock has a NIC that comes later", tests=(
    "test_rules_hold_a_nic_that_comes_later",))
class SecurityGroupsTest(securitygroups.SecurityGroupContract, ActionsCase):
    pass
