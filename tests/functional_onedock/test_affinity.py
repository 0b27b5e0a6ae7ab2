# SPDX-License-Identifier: Apache-2.0
"""VMs with an affinity on Docker."""

from tests.functional import affinitycontract
from tests.functional_onedock.base import OnedockCase


class AffinityTest(affinitycontract.AffinityContract, OnedockCase):
    pass
