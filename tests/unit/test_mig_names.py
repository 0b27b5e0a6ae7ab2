# SPDX-License-Identifier: Apache-2.0
"""No two MIG profiles have one name in a cloud."""

import testtools
from hypothesis import given
from hypothesis import strategies as st

from containerhost.devices.migprofile import SUFFIXES, parse
from containerhost.devices.model import Device, Kind, Slice
from nova_lxd_ext.hardware.sliceproviders import resource_class
from onedriver.node.devices import UNKNOWN_SLICE, slice_product

# Compute slices and GB of the GPU instances of each model (NVIDIA MIG User Guide, "Supported MIG Profiles").
MODELS = {
    "A30": "1g.6 2g.12 4g.24", "A100 40GB": "1g.5 1g.10 2g.10 3g.20 4g.20 7g.40",
    "A100 and H100 80GB": "1g.10 1g.20 2g.20 3g.40 4g.40 7g.80", "H100 94GB": "1g.12 1g.24 2g.24 3g.47 4g.47 7g.94",
    "H100 96GB, H20": "1g.12 1g.24 2g.24 3g.48 4g.48 7g.96", "H200": "1g.18 1g.35 2g.35 3g.71 4g.71 7g.141",
    "GH200 144GB": "1g.18 1g.36 2g.36 3g.72 4g.72 7g.144", "B200": "1g.23 1g.45 2g.45 3g.90 4g.90 7g.180",
    "GB200": "1g.23 1g.47 2g.47 3g.93 4g.93 7g.186", "B300": "1g.34 1g.67 2g.67 3g.135 4g.135 7g.269",
    "GB300": "1g.35 1g.70 2g.70 3g.139 4g.139 7g.278", "RTX PRO 6000": "1g.24 2g.48 4g.96",
    "RTX PRO 5000": "1g.12 1g.24 2g.24 2g.48", "RTX PRO 4500": "1g.16 2g.32"}


def part(profile: str | None) -> Device:
    return Device(id="0000:3b:00.0/gi1/ci0", address="0000:3b:00.0", kind=Kind.GPU_SLICE, vendor_id="10de",
                  product_id="20b0", class_code="030200", plugin="nvidia", slice=Slice(1, 0, profile))


def profiles() -> set[str]:
    """Return the names of all profiles, with compute instances that have a part of their GPU instance."""
    instances = {f"{instance}gb{suffix}" for model in MODELS.values() for instance in model.split()
                 for suffix in SUFFIXES}
    return instances | {f"{count}c.{name}" for name in instances for count in range(1, int(name[0]))}


class NamesTest(testtools.TestCase):
    def test_every_profile_has_a_name_of_its_own(self) -> None:
        every = profiles()
        self.assertEqual(len(every), len({resource_class(part(name)) for name in every} - {None}))
        self.assertEqual(len(every), len({slice_product(name) for name in every} - {UNKNOWN_SLICE}))

    @given(st.lists(st.builds("{}{}g.{}gb{}".format, st.sampled_from(("", *(f"{part}c." for part in range(1, 8)))),
                              st.integers(1, 8), st.integers(1, 9999), st.sampled_from(SUFFIXES)),
                    min_size=2, max_size=2, unique=True))
    def test_two_profiles_have_two_names(self, names: list[str]) -> None:
        one, other = names
        self.assertNotEqual(resource_class(part(one)), resource_class(part(other)))
        self.assertNotEqual(slice_product(one), slice_product(other))
        self.assertTrue(resource_class(part(one)) and slice_product(one) != UNKNOWN_SLICE)

    def test_products_are_numbers_that_the_core_can_read(self) -> None:
        for name in profiles():
            self.assertTrue(0 < int(slice_product(name), 16) < 1 << 32, name)

    def test_names_of_running_clouds_stay(self) -> None:
        for name, product, resource in (
            ("1g.5gb", "f105", "CUSTOM_MIG_1G_5GB"), ("7g.141gb", "f78d", "CUSTOM_MIG_7G_141GB"),
            ("1g.10gb+me", "e10a", "CUSTOM_MIG_1G_10GB_ME"), ("2g.48gb+me", "e230", "CUSTOM_MIG_2G_48GB_ME")):
            self.assertEqual((product, resource), (slice_product(name), resource_class(part(name))))

    def test_profile_of_another_form_has_no_name(self) -> None:
        for name in (None, "", "1g.24gb+new", "1g.05gb", "1g.5gb+me-me", "9g.1gb", "1g.24gb\n"):
            self.assertEqual((None, UNKNOWN_SLICE, None),
                             (parse(name), slice_product(name), resource_class(part(name))))
