# SPDX-License-Identifier: Apache-2.0
from typing import Any
from unittest import mock

import testtools

from containerhost.engines.lxd import niclimits
from containerhost.errors import EngineError, SpecError

NIC = {"type": "nic", "parent": "br0", "limits.egress": "8000"}


class NicLimitsTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.instance: dict[str, Any] = {"devices": {"nic-eth0": dict(NIC), "root": {"type": "disk"}}}
        self.engine = mock.Mock()
        self.engine.change.side_effect = lambda name, change: change(self.instance, "etag")
        self.engine.client.replace_instance.side_effect = self.replace
        self.broken = False

    def replace(self, name: str, instance: dict[str, Any], etag: str) -> None:
        self.instance = instance
        if self.broken:
            self.broken = False
            raise EngineError("Failed to create ingress tc qdisc")

    def limit(self, nic: str = "eth0", received: int | None = 16000, sent: int | None = None) -> None:
        niclimits.limit(self.engine, "one-1", nic, received, sent)

    def test_limits_replace_the_former_ones_and_nothing_else(self) -> None:
        self.limit()
        self.assertEqual({"nic-eth0": {"type": "nic", "parent": "br0", "limits.ingress": "16000"},
                          "root": {"type": "disk"}}, self.instance["devices"])
        self.limit()
        self.engine.client.replace_instance.assert_called_once()

    def test_former_limits_are_restored_on_an_error(self) -> None:
        self.broken = True
        self.assertRaises(EngineError, self.limit)
        self.assertEqual(NIC, self.instance["devices"]["nic-eth0"])

    def test_unknown_interface_is_refused_unchanged(self) -> None:
        self.assertRaises(SpecError, self.limit, "eth7")
        self.engine.client.replace_instance.assert_not_called()
