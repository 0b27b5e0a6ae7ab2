# SPDX-License-Identifier: Apache-2.0
"""VMs on Docker whose cores come and go."""

from containerhost.engines.capabilities import LiveSizes
from containerhost.engines.docker.live import Live, LiveState
from tests import levels
from tests.functional import elasticcontract
from tests.functional_onedock.base import OnedockCase

REPEATED = "the drivers share this code, and the gate has it on LXD"


@levels.exhaustive(REPEATED, tests=("test_bounds_that_cannot_be_are_refused", "test_owner_who_changes_his_mind"))
class ElasticTest(elasticcontract.ElasticContract, OnedockCase):
    def sizes(self) -> LiveSizes[LiveState]:
        return Live(self.engine)
