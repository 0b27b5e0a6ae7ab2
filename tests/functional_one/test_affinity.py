# SPDX-License-Identifier: Apache-2.0
"""VMs with an affinity on LXD."""

from tests.functional import affinitycontract
from tests.functional_one.test_actions import ActionsCase


class AffinityTest(affinitycontract.AffinityContract, ActionsCase):
    pass
