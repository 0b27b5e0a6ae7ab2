# SPDX-License-Identifier: Apache-2.0
"""Security groups of VMs on LXD."""

from tests.functional import securitygroups
from tests.functional_one.test_actions import ActionsCase


class SecurityGroupsTest(securitygroups.SecurityGroupContract, ActionsCase):
    pass
