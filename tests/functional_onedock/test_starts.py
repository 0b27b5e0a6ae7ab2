# SPDX-License-Identifier: Apache-2.0
import testtools

from tests.functional.startscontract import StartsContract
from tests.functional_one.node import Result
from tests.functional_onedock.frontend import FrontEnd
from tests.functional_onedock.node import DockerNode


class StartsTest(StartsContract, testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.node = self.useFixture(DockerNode())
        self.front = self.useFixture(FrontEnd(self.node))

    def front_end(self, kind: str, name: str) -> Result:
        if kind == "datastore":
            return self.front.ds(name)
        return self.front.tm(name, "8", "raw", *[self.front.place("disk.1")] * 3)
