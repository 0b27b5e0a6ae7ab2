# SPDX-License-Identifier: Apache-2.0

from unittest import mock

import testtools

from containerhost.engines.network.veth import Pair, Shape
from containerhost.engines.spec import IpConfig, Nic
from onedock import nics
from onedriver import vm
from onedriver.errors import BadInput, NotSupported
from tests.unit.onedock.machines import machine

MAC = "02:00:0a:63:00:01"
NIC = vm.Nic(3, MAC, "br0", "one-1-3", 9000)


class NicsTest(testtools.TestCase):
    def test_a_pair_under_opennebulas_name(self) -> None:
        self.assertEqual(Pair("one-1-3", "oi-1-3", MAC, f"onedock VM 1 {MAC}", 9000), nics.pair(machine(), NIC))

    def test_its_inner_end_with_the_contexts_addresses(self) -> None:
        context = {"ETH5_MAC": MAC, "ETH5_IP": "10.0.0.5"}
        found = nics.spec_nic(machine()._replace(context=context), NIC)
        self.assertEqual(Nic("eth3", "oi-1-3", setup=IpConfig(("10.0.0.5/24",))), found)

    def test_what_cannot_be_is_refused(self) -> None:
        for changes, error in (({"bridge": None}, BadInput), ({"target": "eth0"}, BadInput),
                               ({"target": "one-2-3"}, BadInput)):
            self.assertRaises(error, nics.pair, machine(), NIC._replace(**changes))


class MakeTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.links: dict[str, str] = {}
        self.veths = mock.Mock()
        self.veths.mark.side_effect = self.links.get
        self.veths.marks.side_effect = lambda pair: self.links.get(pair.host_end) == pair.mark
        self.veths.make.side_effect = lambda pair: self.links.update({pair.host_end: pair.mark})
        self.nics = nics.Nics(self.veths)

    def made(self, mac: str) -> bool:
        return self.nics.make(machine(), NIC._replace(mac=mac), running=True)

    def test_nic_that_took_the_number_of_another_has_its_own_address(self) -> None:
        """oned did not get the answer to the attachment of the one before."""
        other = "02:00:0a:63:00:99"
        self.assertEqual([True, False, True, False], [self.made(mac) for mac in (MAC, MAC, other, other)])
        self.assertEqual([MAC, other], [call.args[0].mac for call in self.veths.make.call_args_list])
        self.veths.remove.assert_called_once_with("one-1-3")

    def test_interface_of_an_earlier_release_stays(self) -> None:
        self.links["one-1-3"] = "onedock VM 1"
        self.assertEqual([False, False], [self.made(MAC) for _ in range(2)])


class LimitsTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.veths = mock.Mock()
        self.veths.mark.return_value = nics.owner(1)
        self.nics = nics.Nics(self.veths)

    def test_changed_limits_hold_at_the_next_start(self) -> None:
        self.veths.marks.return_value = True
        for bandwidth, shapes in (((1, None), (Shape(1000, 1000, 1000), None)), ((None, None), (None, None))):
            self.nics.make(machine(), NIC._replace(bandwidth=bandwidth), running=True)
            self.veths.limit.assert_called_with("one-1-3", *shapes)

    def test_limits_of_a_nic_that_exists(self) -> None:
        self.nics.limit(1, 3, 1000, None)
        self.veths.limit.assert_called_once_with("one-1-3", Shape(1000, 1000, 1000), None)

    def test_what_cannot_be_limited_is_refused(self) -> None:
        self.veths.is_bridged.return_value = False
        self.assertRaises(NotSupported, self.nics.limit, 1, 3, 1000, None)
        self.veths.mark.return_value = "of another"
        self.assertRaises(BadInput, self.nics.limit, 1, 3, 1000, None)
        self.veths.limit.assert_not_called()


class RemoveTest(testtools.TestCase):
    def test_an_alias_that_another_vms_tenant_gave_its_interface_is_no_mark(self) -> None:
        veths = mock.Mock()
        veths.marked.return_value = dict.fromkeys(("one-1-3", "oi-2-0", "enp3s0", "one-11-0"), nics.owner(1))
        nics.Nics(veths).remove(1)
        veths.remove.assert_called_once_with("one-1-3")
