# SPDX-License-Identifier: Apache-2.0
"""LXD, and Incus where $LXD_PROGRAM is incusd."""

from containerhost.engines.capabilities import LiveSizes
from containerhost.engines.lxd.client import VersionedInstance
from containerhost.engines.lxd.live import Live
from containerhost.privileged import Privileged
from tests import levels
from tests.conformance.engine import elastic, frame
from tests.functional.containerhost.base import LxdTestCase


@levels.exhaustive(frame.REPEATED, when=frame.INCUS)
class LxdElasticTest(elastic.ElasticConformance, LxdTestCase):
    def sizes(self) -> LiveSizes[VersionedInstance]:
        return Live(self.engine, Privileged())

    def options(self) -> list[str]:
        return ["--engine", f"lxd={self.daemon.socket}"]
