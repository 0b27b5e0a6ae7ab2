# SPDX-License-Identifier: Apache-2.0
import testtools

from onedriver.errors import BadInput
from onedriver.node.devices import slice_product
from onedriver.pciaddress import from_device_id, from_opennebula, share_product

FORMS = (("0000:17:00:0", "17:00.0", "0000:17:00.0"),
         ("0001:ca:1f:7", "0001:ca:1f.7", "0001:ca:1f.7"),
         ("0000:ca:00:0:mig0", "ca:00.0:mig0", "0000:ca:00.0/gi0/ci0"),
         ("0000:ca:00:0:mig11c2", "ca:00.0:mig11c2", "0000:ca:00.0/gi11/ci2"),
         ("0000:ca:00:0:share0", "ca:00.0:share0", "0000:ca:00.0/share0"))


class PciAddressTest(testtools.TestCase):
    def test_there_and_back(self) -> None:
        for address, short, device_id in FORMS:
            for found in (from_opennebula(address), from_device_id(device_id)):
                self.assertEqual((address, short, device_id), (found.address, found.short, found.device_id))

    def test_the_kernels_form_is_understood_too(self) -> None:
        self.assertEqual("0000:17:00:0", from_opennebula("0000:17:00.0").address)
        self.assertEqual("0000:af:00:1", from_opennebula("0000:AF:00:1").address)

    def test_what_is_no_address_is_refused(self) -> None:
        for text in ("", "17:00.0", "0000:17:00:8", "0000:17:20:0", "0000:17:00:0:mig", "0000:17:00:0/..",
                     "0000:17:00:0\n", "0000:17:00:0:mig1c", "0000:17:00:0:share", "0000:17:00:0:mig1:share0"):
            self.assertRaises(BadInput, from_opennebula, text)
        for text in ("", "net0", "0000:17:00.0/gi1", "0000:17:00.0/gi1/ci0/x", "0000:17:00.0/share"):
            self.assertRaises(BadInput, from_device_id, text)

    def test_a_slices_product_number_tells_its_profile(self) -> None:
        for profile, number in (("1g.5gb", "f105"), ("2g.10gb", "f20a"), ("7g.80gb", "f750"), ("1g.10gb+me", "e10a"),
                                ("7g.269gb", "f007010d"), ("1g.24gb+gfx", "f2010018"), ("1g.24gb-me", "f3010018"),
                                ("2g.48gb+me.all", "f4020030"), ("1c.3g.20gb", "f0130014"), (None, "f000"),
                                ("odd", "f000")):
            self.assertEqual(number, slice_product(profile))

    def test_a_places_product_number_tells_its_gpu(self) -> None:
        self.assertEqual(("d00020b0", "d0002330"), (share_product("20b0"), share_product("2330")))

    def test_shares_of_gpus_whose_numbers_differ_in_one_digit_have_different_ones(self) -> None:
        self.assertNotEqual(share_product("1bb1"), share_product("2bb1"))  # Quadro P4000, RTX PRO 6000
