# SPDX-License-Identifier: Apache-2.0
"""VMs with an affinity on LXD."""

from tests import levels
from tests.functional import affinitycontract
from tests.functional_one.test_actions import ActionsCase


@levels.exhaustive("onedock refuses the same", tests=("test_bad_affinities_are_refused",))
class AffinityTest(affinitycontract.AffinityContract, ActionsCase):
    pass
