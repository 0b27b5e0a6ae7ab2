# SPDX-License-Identifier: Apache-2.0
"""VMs on Docker whose cores come and go."""

from containerhost.engines.capabilities import LiveSizes
from containerhost.engines.docker.live import Live, Seen
from tests.functional import elasticcontract
from tests.functional_onedock.base import OnedockCase


class ElasticTest(elasticcontract.ElasticContract, OnedockCase):
    def sizes(self) -> LiveSizes[Seen]:
        return Live(self.engine)
