# SPDX-License-Identifier: Apache-2.0
import base64
import json

import testtools
import yaml

from containerhost.engines.spec import CloudInit
from lxdone import cloudinit
from onedriver.errors import BadInput
from tests.unit.lxdone.machines import machine

ADDRESSED = {"NETWORK": "YES", "ETH0_MAC": "02:00:0A:63:00:0a", "ETH0_IP": "10.99.0.10", "ETH0_MASK": "255.255.255.0",
             "ETH0_GATEWAY": "10.99.0.1", "ETH0_DNS": "10.99.0.1 2001:db8::1", "ETH0_SEARCH_DOMAIN": "a.example",
             "ETH0_MTU": "9000", "ETH0_IP6": "2001:db8::10", "ETH0_IP6_PREFIX_LENGTH": "48"}


def coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


class CloudInitTest(testtools.TestCase):
    def vendor(self, **context: str) -> dict[str, object]:
        text = cloudinit.documents(context).vendor_data or "#cloud-config\n{}"
        self.assertTrue(text.startswith("#cloud-config\n"))
        return json.loads(text.partition("\n")[2])

    def test_a_recorded_vm(self) -> None:
        found = cloudinit.documents(machine().context)
        vendor = json.loads((found.vendor_data or "").partition("\n")[2])
        self.assertEqual((None, ["ssh-ed25519 AAAA test"]), (found.user_data, vendor["ssh_authorized_keys"]))
        self.assertEqual("#!/bin/sh\necho hi", base64.b64decode(vendor["write_files"][0]["content"]).decode())
        self.assertEqual([{"type": "static", "address": "10.99.0.10/24", "gateway": "10.99.0.1",
                           "dns_nameservers": ["10.99.0.1"]}],
                         json.loads(found.network_config or "")["config"][0]["subnets"])

    def test_nothing_asked_nothing_told(self) -> None:
        self.assertEqual(CloudInit(), cloudinit.documents({}))

    def test_the_tenants_own_document(self) -> None:
        for context in ({"USER_DATA": "#cloud-config\n{}"},
                        {"USER_DATA": coded("#cloud-config\n{}"), "USER_DATA_ENCODING": "base64"},
                        {"USERDATA": coded("#cloud-config\n{}"), "USERDATA_ENCODING": "base64"}):
            self.assertEqual("#cloud-config\n{}", cloudinit.documents(context).user_data)

    def test_keys_password_name_and_script(self) -> None:
        found = self.vendor(SSH_PUBLIC_KEY="a\n\nb", CRYPTED_PASSWORD_BASE64=coded("$6$x$y\n"),
                            SET_HOSTNAME="vm.example", START_SCRIPT="#!/bin/bash\necho x")
        self.assertEqual((["a", "b"], False, ["root:$6$x$y"], "vm.example"), (
            found["ssh_authorized_keys"], found["disable_root"], found["chpasswd"]["list"], found["hostname"]))
        self.assertEqual("#!/bin/bash\necho x", base64.b64decode(found["write_files"][0]["content"]).decode())
        self.assertEqual({}, self.vendor(PASSWORD="secret", PASSWORD_BASE64=coded("secret")))

    def test_characters_that_json_and_yaml_escape_differently(self) -> None:
        key = "ssh-ed25519 A \U0001f600\x7f\\ud83d\\ude00\u00e9"
        told = cloudinit.documents({"SSH_PUBLIC_KEY": key}).vendor_data
        self.assertEqual([key], yaml.safe_load(told or "")["ssh_authorized_keys"])

    def test_addresses_of_both_kinds(self) -> None:
        (found,) = json.loads(cloudinit.documents(ADDRESSED).network_config or "")["config"]
        self.assertEqual(("physical", "eth0", "02:00:0a:63:00:0a", 9000),
                         tuple(found[key] for key in ("type", "name", "mac_address", "mtu")))
        more = {"dns_nameservers": ["10.99.0.1", "2001:db8::1"], "dns_search": ["a.example"]}
        self.assertEqual([{"type": "static", "address": "10.99.0.10/24", "gateway": "10.99.0.1"} | more,
                          {"type": "static6", "address": "2001:db8::10/48"} | more], found["subnets"])

    def test_methods(self) -> None:
        for more, expected in (({"ETH0_METHOD": "dhcp"}, ["dhcp", "static6"]),
                               ({"ETH0_METHOD": "skip", "ETH0_IP6_METHOD": "dhcp"}, ["dhcp6"])):
            (found,) = json.loads(cloudinit.documents(ADDRESSED | more).network_config or "")["config"]
            self.assertEqual(expected, [subnet["type"] for subnet in found["subnets"]])
        self.assertIsNone(cloudinit.documents(ADDRESSED | {"NETWORK": "NO"}).network_config)

    def test_what_is_not_of_its_form_is_refused(self) -> None:
        for more in ({"ETH0_IP": "x\nruncmd: [y]"}, {"ETH0_MASK": "256"}, {"ETH0_GATEWAY": "x"}, {"ETH0_MAC": "x"},
                     {"ETH0_DNS": "x"}, {"ETH0_MTU": "0"}, {"ETH0_SEARCH_DOMAIN": "-"}, {"SET_HOSTNAME": "a b"},
                     {"START_SCRIPT_BASE64": "?"}, {"CRYPTED_PASSWORD": "a:b"},
                     {"CRYPTED_PASSWORD": "x", "USERNAME": "A:"}, {"USER_DATA": "?", "USER_DATA_ENCODING": "base64"}):
            self.assertRaises(BadInput, cloudinit.documents, ADDRESSED | more)
