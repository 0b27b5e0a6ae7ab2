# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import testtools

from containerhost.engines.lxd import features, restrictions
from containerhost.engines.lxd.restrictions import LISTS, NEEDS, forbidden

PERMITTED = {"restricted": "true"} | {key: need.value for key, need in NEEDS.items()}


class RestrictionsTest(testtools.TestCase):
    def test_project_without_restrictions_permits_all(self) -> None:
        for config in ({}, {"restricted": "false"}, {"restricted": "false", "restricted.devices.gpu": "block"}):
            self.assertEqual({}, forbidden(config))

    def test_all_keys_at_once(self) -> None:
        self.assertEqual(NEEDS.keys(), forbidden({"restricted": "true"}).keys())
        self.assertEqual({}, forbidden(PERMITTED))

    def test_key_with_another_value_and_lists(self) -> None:
        found = forbidden(PERMITTED | {"restricted.devices.disk": "managed", "restricted.devices.disk.paths": "/srv"})
        self.assertEqual({"restricted.devices.disk": "allow", "restricted.devices.disk.paths": ""},
                         {key: need.value for key, need in found.items()})
        self.assertIn("lxc project set hpc restricted.devices.disk=allow restricted.devices.disk.paths=",
                      restrictions.in_words("hpc", found))

    def test_doctor_names_each_restricted_project(self) -> None:
        (found,) = features.restricted([{"name": "default", "config": {}}, {"name": "good", "config": PERMITTED},
                                        {"name": "hpc", "config": {"restricted": "true"}}])
        for words in ("project hpc", *NEEDS):
            self.assertIn(words, found.problem)

    def test_manual_names_all_keys(self) -> None:
        manual = (Path(__file__).resolve().parents[4] / "doc/source/install.md").read_text()
        for key in (*NEEDS, *LISTS):
            self.assertIn(f"`{key}`", manual)
