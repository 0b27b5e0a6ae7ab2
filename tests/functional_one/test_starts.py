# SPDX-License-Identifier: Apache-2.0
import testtools

from tests.functional.startscontract import StartsContract
from tests.functional_one.node import Node, Result


class StartsTest(StartsContract, testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.node = self.useFixture(Node())

    def front_end(self, kind: str, name: str) -> Result:
        """Call the line in OpenNebula's own transfer drivers, for a disk of a VM that is not there."""
        disk = f"{self.node.datastores}//0/1/disk.0"
        script = self.node.remotes / kind / self.node.driver / name
        return self.node.command(f"{script} cpds node1:{disk} node1:{disk} 1 101")
