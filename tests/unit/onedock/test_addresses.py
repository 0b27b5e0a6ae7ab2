# SPDX-License-Identifier: Apache-2.0
import testtools

from containerhost.engines.spec import IpConfig
from onedock import addresses
from onedriver.errors import BadInput

MAC, OTHER = "02:00:0a:63:00:01", "02:00:0a:63:00:02"
CONTEXT = {"ETH0_MAC": MAC, "ETH0_IP": "10.0.0.5", "ETH0_MASK": "255.255.0.0", "ETH0_GATEWAY": "10.0.0.1",
           "ETH0_METRIC": "7", "ETH0_DNS": "10.0.0.1, 10.0.0.2", "ETH0_IP6": "FD00::5", "ETH0_IP6_PREFIX_LENGTH": "48",
           "ETH0_IP6_GATEWAY": "fd00::1", "ETH0_ALIAS0_IP": "10.0.9.9", "ETH1_MAC": OTHER.upper(),
           "ETH1_IP": "10.9.0.5", "ETH1_SEARCH_DOMAIN": "example.org a.b", "DNS": "9.9.9.9"}


class SetupTest(testtools.TestCase):
    def test_all_of_an_interface(self) -> None:
        self.assertEqual(IpConfig(("10.0.0.5/16", "10.0.9.9/24", "fd00::5/48"), ("10.0.0.1", "fd00::1"), 7),
                         addresses.setup(CONTEXT, MAC))

    def test_by_its_mac_and_with_the_usual_mask(self) -> None:
        self.assertEqual(IpConfig(("10.9.0.5/24",)), addresses.setup(CONTEXT, OTHER))
        self.assertEqual(IpConfig(), addresses.setup(CONTEXT, "02:00:0a:63:00:09"))
        self.assertEqual(IpConfig(), addresses.setup({}, MAC))

    def test_what_the_container_does_itself_is_left_to_it(self) -> None:
        for method in ("dhcp", "skip"):
            self.assertEqual(IpConfig(("fd00::5/48",), ("fd00::1",), 7),
                             addresses.setup(CONTEXT | {"ETH0_METHOD": method}, MAC))
        theirs = {"ETH0_METHOD": "dhcp", "ETH0_IP6_METHOD": "auto"}
        self.assertEqual(IpConfig(metric=7), addresses.setup(CONTEXT | theirs, MAC))

    def test_what_is_no_address_is_refused_by_name(self) -> None:
        for key, value in (("ETH0_IP", "10.0.0.500"), ("ETH0_IP", "$(reboot)"), ("ETH0_MASK", "255.0.255.0"),
                           ("ETH0_IP", "fd00::1"), ("ETH0_IP6", "10.0.0.1"), ("ETH0_IP6", "fe80::1%eth0"),
                           ("ETH0_GATEWAY", "x"), ("ETH0_METRIC", "-1"), ("ETH0_METHOD", "magic")):
            error = self.assertRaises(BadInput, addresses.setup, CONTEXT | {key: value}, MAC)
            self.assertIn("ETH0_", str(error))


class ResolvTest(testtools.TestCase):
    def test_of_all_interfaces_once_each(self) -> None:
        self.assertEqual("nameserver 9.9.9.9\nnameserver 10.0.0.1\nnameserver 10.0.0.2\nsearch example.org a.b\n",
                         addresses.resolv_conf(CONTEXT | {"ETH1_DNS": "10.0.0.1 8.8.8.8"}))
        self.assertEqual("", addresses.resolv_conf({}))

    def test_nothing_else_gets_into_the_file(self) -> None:
        for context in ({"DNS": "x"}, {"DNS": "fe80::1%a"}, {"SEARCH_DOMAIN": "a;b"}, {"SEARCH_DOMAIN": "-"}):
            self.assertRaises(BadInput, addresses.resolv_conf, context)
