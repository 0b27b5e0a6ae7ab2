# SPDX-License-Identifier: Apache-2.0
"""VMs on LXD whose cores come and go."""

from containerhost.engines.capabilities import LiveSizes
from containerhost.engines.lxd.client import VersionedInstance
from containerhost.engines.lxd.live import Live
from containerhost.privileged import Privileged
from tests.functional import elasticcontract
from tests.functional_one.test_actions import ActionsCase


class ElasticTest(elasticcontract.ElasticContract, ActionsCase):
    def sizes(self) -> LiveSizes[VersionedInstance]:
        return Live(self.engine, Privileged())
