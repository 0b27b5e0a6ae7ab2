# SPDX-License-Identifier: Apache-2.0
import testtools

from containerhost.engines.contract import ContainerState, Status
from nova_lxd_ext.host import orphans
from tests.unit.nova import records


class OrphansTest(testtools.TestCase):
    def test_only_what_carries_the_mark_of_a_server_placed_elsewhere(self) -> None:
        containers = [ContainerState(name, Status.RUNNING, labels) for name, labels in (
            ("placed", {"nova.uuid": records.UUID}), ("orphan", {"nova.uuid": "other"}), ("foreign", {}))]
        self.assertEqual(("orphan",), orphans.report(containers, [records.instance()]))
