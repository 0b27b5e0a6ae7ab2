# SPDX-License-Identifier: Apache-2.0
"""The roles for OpenNebula, on a node with the real LXD."""

import testtools

from tests import levels
from tests.functional import ansiblecontract
from tests.functional_one.node import Node


@levels.exhaustive("plays take minutes; the files that the roles write are compared in tests/unit")
class AnsibleTest(ansiblecontract.AnsibleContract, testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.prepare(self.useFixture(Node()))
