# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import testtools

from onedriver import disk_paths
from onedriver.errors import BadInput

METACHARACTERS = ("x; id", "$(id)", "`id`", "a b", "-oProxyCommand=id", "x\nid", "", "../../etc", "x'y", 'x"y', "x|y")


class PlacesTest(testtools.TestCase):
    def test_what_oned_writes(self) -> None:
        for text, host, path, vm in (
            ("node2:/var/lib/one//datastores/100/10/disk.0", "node2", "/var/lib/one/datastores/100/10/disk.0", 10),
            ("node2:/var/lib/one//datastores/100/10", "node2", "/var/lib/one/datastores/100/10", 10),
            ("10.0.0.7:/ds/0/1/disk.12", "10.0.0.7", "/ds/0/1/disk.12", 1),
            ("[fd00::1]:/ds/0/1/", "[fd00::1]", "/ds/0/1", 1),
        ):
            found = disk_paths.parse(text)
            self.assertEqual((host, Path(path), vm), (found.host, found.path, found.vm))

    def test_what_is_no_place_of_a_vm(self) -> None:
        for text in METACHARACTERS:
            for whole in (text, f"{text}:/ds/0/1/disk.0", f"node:/ds/0/1/{text or 'x'}", f"node:/ds/{text}/1/disk.0",
                          f"node:/ds/0/{text}/disk.0", f"node:{text}"):
                self.assertRaises(BadInput, disk_paths.parse, whole)
        for whole in ("node:/0/1/../../etc/passwd", "node:/ds/0/1/disk.0/..//../disk.0/x", "node:/1/disk.0", "node:/"):
            self.assertRaises(BadInput, disk_paths.parse, whole)

    def test_sources(self) -> None:
        for text in ("fe:/var/lib/one//datastores/101/x.image", "/var/lib/one//datastores/101/x.image"):
            self.assertEqual(Path("/var/lib/one/datastores/101/x.image"), disk_paths.source(text))
        for text in ("x", "", "fe:x", "../x", "/x\ny"):
            self.assertRaises(BadInput, disk_paths.source, text)

    def test_numbers(self) -> None:
        self.assertEqual(12, disk_paths.number("12", "x"))
        for text in (*METACHARACTERS, "-1", "1.5", "1" * 20, "٣"):
            self.assertRaises(BadInput, disk_paths.number, text, "the size")
