# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import fixtures
import testtools

from containerhost.errors import SpecError
from containerhost.inventory import devicefile


class DeviceFileTest(testtools.TestCase):
    def test_every_scalar_is_text(self) -> None:
        for text, expected in (
                ("0000:17:00.0: [1g.5gb, 2g.10gb]", {"0000:17:00.0": ["1g.5gb", "2g.10gb"]}),
                ("'0000:17:00.0': {containers: 4}", {"0000:17:00.0": {"containers": "4"}}),
                ("0000:17:00.0: []\n0000:18:00.0: [1e3]", {"0000:17:00.0": [], "0000:18:00.0": ["1e3"]}),
                ("0000:17:00.0: !!python/object:os.system {}", {"0000:17:00.0": {}}),
                ("# nothing yet\n", {}), ("", {})):
            with self.subTest(text):
                self.assertEqual(expected, devicefile.parse(text.encode(), "file"))

    def test_what_is_no_such_file(self) -> None:
        for text, words in (
                ("[1, 2]", "not a mapping"), ("just words", "not a mapping"),
                ("gpu0: [1g.5gb]", "'gpu0' is not a PCI address"),
                ("0000:17:00.0: [1g.5gb]\n0000:17:00.0: []", "is a duplicate key"), ("a: [", "not YAML"),
                ("\xff\xfe\x00\x80", "not a mapping"),
                ("? [0000]\n: x", "not YAML"), ("[" * 5000, "not YAML")):
            with self.subTest(text[:20]):
                error = self.assertRaises(SpecError, devicefile.parse, text.encode("latin-1", "replace"), "the file")
                self.assertIn("the file", str(error))
                self.assertIn(words, str(error))

    def test_a_file_that_cannot_be_read(self) -> None:
        directory = Path(self.useFixture(fixtures.TempDir()).path)
        (directory / "large").write_bytes(b"#" * (devicefile.LIMIT + 1))
        for name, words in (("none", "No such file"), ("large", "larger than")):
            self.assertIn(words, str(self.assertRaises(SpecError, devicefile.load, directory / name)))
