# SPDX-License-Identifier: Apache-2.0

import testtools

from containerhost.network.veth import Pair
from containerhost.spec import IpConfig, Nic
from onedock import nics
from onedriver import vm
from onedriver.errors import BadInput
from tests.unit.onedock.machines import machine

MAC = "02:00:0a:63:00:01"
NIC = vm.Nic(3, MAC, "br0", "one-1-3", "bridge", 9000)


class NicsTest(testtools.TestCase):
    def test_a_pair_under_opennebulas_name(self) -> None:
        self.assertEqual(Pair("one-1-3", "oi-1-3", MAC, "onedock VM 1", 9000), nics.pair(machine(), NIC))

    def test_its_inner_end_with_the_contexts_addresses(self) -> None:
        context = {"ETH5_MAC": MAC, "ETH5_IP": "10.0.0.5"}
        found = nics.spec_nic(machine()._replace(context=context), NIC)
        self.assertEqual(Nic("eth3", "oi-1-3", setup=IpConfig(("10.0.0.5/24",))), found)

    def test_what_cannot_be_is_refused(self) -> None:
        for changes, error in (({"bridge": None}, BadInput), ({"target": "eth0"}, BadInput),
                               ({"target": "one-2-3"}, BadInput)):
            self.assertRaises(error, nics.pair, machine(), NIC._replace(**changes))
