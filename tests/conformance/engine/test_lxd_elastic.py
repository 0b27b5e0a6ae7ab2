# SPDX-License-Identifier: Apache-2.0
"""LXD, and Incus where $LXD_PROGRAM is incusd."""

from containerhost.engines.capabilities import LiveSizes
from containerhost.engines.lxd.client import VersionedInstance
from containerhost.engines.lxd.live import Live
from containerhost.privileged import Privileged
from tests.conformance.engine import elastic
from tests.functional.containerhost.base import LxdTestCase


class LxdElasticTest(elastic.ElasticConformance, LxdTestCase):
    def sizes(self) -> LiveSizes[VersionedInstance]:
        return Live(self.engine, Privileged())

    def options(self) -> list[str]:
        return ["--engine", f"lxd={self.daemon.socket}"]
