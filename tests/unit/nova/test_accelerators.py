# SPDX-License-Identifier: Apache-2.0
from typing import Any

import testtools

from containerhost.errors import SpecError
from nova_lxd_ext.hardware import accelerators


def arq(uuid: str = "a", kind: str = "PCI", **handle: Any) -> dict[str, Any]:
    address = {"domain": "0000", "bus": "0c", "device": "0", "function": "1"}
    return {"uuid": uuid, "attach_handle_type": kind, "attach_handle_info": address | handle, "state": "Bound"}


class AddressesTest(testtools.TestCase):
    def test_are_written_as_the_kernel_does(self) -> None:
        for handle, expected in (
                ({}, "0000:0c:00.1"), ({"domain": "0", "bus": "C"}, "0000:0c:00.1"),
                ({"domain": "10000", "device": "1f", "function": "7"}, "10000:0c:1f.7"),
                ({"bus": "0xaf", "device": "00", "function": 0}, "0000:af:00.0")):
            self.assertEqual((expected,), accelerators.addresses([arq(**handle)]), handle)

    def test_their_order_is_that_of_the_uuids_whatever_cyborg_answers_first(self) -> None:
        arqs = [arq("c", function="2"), arq("a", function="3"), arq("b", function="1")]
        self.assertEqual(("0000:0c:00.3", "0000:0c:00.1", "0000:0c:00.2"), accelerators.addresses(arqs))

    def test_another_handle_is_refused_by_name(self) -> None:
        for kind, said in (("MDEV", "MDEV"), ("TEST_PCI", "TEST_PCI"), ("", "none")):
            error = self.assertRaises(SpecError, accelerators.addresses, [arq("b7", kind)])
            self.assertIn(said, str(error))
            self.assertIn("b7", str(error))

    def test_no_address_is_refused(self) -> None:
        for handle in ({"bus": "xyz"}, {"function": "8"}, {"device": "20"}, {"domain": ""}, {"bus": "../.."},
                       {"device": None}):
            self.assertRaises(SpecError, accelerators.addresses, [arq(**handle)])
        self.assertRaises(SpecError, accelerators.addresses,
                          [{"uuid": "a", "attach_handle_type": "PCI", "attach_handle_info": None}])

    def test_nothing_asked_nothing_given(self) -> None:
        self.assertEqual((), accelerators.addresses([]))
