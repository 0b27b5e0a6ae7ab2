# SPDX-License-Identifier: Apache-2.0
import testtools

from containerhost.images import metadata
from containerhost.images.errors import BadImage

DATED = "architecture: x86_64\ncreation_date: 1\n"


class TestMetadata(testtools.TestCase):
    def test_good(self):
        for text in (DATED, DATED + "properties: null\n", DATED + "properties: {os: alpine, 3: 4}\n",
                     DATED + "expiry_date: 253402300799\ntemplates: {/etc/x: {when: [create], template: x.tpl}}\n",
                     DATED + "expiry_date: 0\n", "{architecture: x86_64, creation_date: 0x7}"):
            self.assertEqual("x86_64", metadata.architecture(text.encode()), text)

    def test_bad(self):
        """Test the words that refuse here what LXD would refuse late, misread or suffer from."""
        for words, text in (
                ("names no architecture", "creation_date: 1\n"),
                ("names no architecture", "architecture: \"\"\ncreation_date: 1\n"),
                ("names no architecture", "architecture: [x86_64]\ncreation_date: 1\n"),
                ("names no architecture", "[1, 2]"),
                ("names no architecture", DATED.replace("x86_64", '"x86_64\\nproperties: {}"')),
                ("names no architecture", ""),
                ("no creation_date", "architecture: x86_64\n"),
                ("creation_date 'abc'", "architecture: x86_64\ncreation_date: abc\n"),
                ("creation_date 'True'", "architecture: x86_64\ncreation_date: true\n"),
                ("creation_date '0'", "architecture: x86_64\ncreation_date: 0\n"),
                ("creation_date '-5'", "architecture: x86_64\ncreation_date: -5\n"),
                ("creation_date 'None'", "architecture: x86_64\ncreation_date:\n"),
                ("creation_date '99999999999999999'", "architecture: x86_64\ncreation_date: 99999999999999999\n"),
                ("expiry_date '253402300800'", DATED + "expiry_date: 253402300800\n"),
                ("alias", "x: &d 99\narchitecture: x86_64\ncreation_date: *d\n"),
                ("key '<<', which is given twice, is a merge key", DATED + "<<: {creation_date: 99999999999999999}\n"),
                ("key 'creation_date', which is given twice", DATED + "creation_date: 99999999999999999\n"),
                ("key 'os', which", DATED + "properties: {os: a, os: b}\n"),
                ("properties that are not texts", DATED + "properties: [1]\n"),
                ("properties that are not texts", DATED + "properties: {a: {b: c}}\n"),
                ("cannot be read", "architecture: [unclosed"),
                ("cannot be read", "[" * 50_000),
                *(("cannot be read", f"{DATED}properties: !!{odd}\n") for odd in (
                    "timestamp x", "bool x", 'int ""', 'float ""', "set [a]", "map [a]")),
                ("65537 bytes", "#" * 65_537),
                ("is not text", "? [a]\n: b\n"),
                ("cannot be read", DATED + "...\n---\nfoo: bar\n")):
            error = self.assertRaises(BadImage, metadata.architecture, text.encode())
            self.assertIn(words, str(error), text[:100])
        self.assertRaises(BadImage, metadata.architecture, b"architecture: \xff\xfe\x00")
