# SPDX-License-Identifier: Apache-2.0
import dataclasses
import json
from pathlib import Path

import fixtures
import testtools

from containerhost.linux import records


@dataclasses.dataclass
class Known:
    name: str
    size: int = 0


def of_later_release(file: Path) -> None:
    """Write a record as a later release would: with a higher version and a field that nobody here knows."""
    file.write_text(json.dumps(json.loads(file.read_text()) | {"version": 9, "lease": [1]}))


def of_first_release(file: Path) -> None:
    """Write a record as it was before there were versions."""
    content = json.loads(file.read_text())
    del content["version"]
    file.write_text(json.dumps(content))


def lease(file: Path) -> tuple[int, list[int]]:
    content = json.loads(file.read_text())
    return content["version"], content["lease"]


class TestRecords(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.file = Path(self.useFixture(fixtures.TempDir()).path) / "record.json"

    def replace(self, **fields: object) -> dict[str, object]:
        self.file.write_text(records.replacing(self.file, fields, 2))
        return json.loads(self.file.read_text())

    def test_first_record_has_the_own_version(self):
        self.assertEqual({"name": "a", "version": 2}, self.replace(name="a"))

    def test_fields_of_others_and_a_higher_version_are_kept(self):
        self.replace(name="a")
        of_later_release(self.file)
        self.assertEqual({"name": "b", "lease": [1], "version": 9}, self.replace(name="b"))

    def test_record_of_an_older_release_gets_the_own_version(self):
        self.file.write_text('{"name": "a"}')
        self.assertEqual({"name": "b", "version": 2}, self.replace(name="b"))

    def test_what_is_no_record_is_replaced_as_a_whole(self):
        for content in (b"", b"{", b"[]", b"\xff", b'{"version": "x", "old": 1}', b"[" * 100_000):
            self.file.write_bytes(content)
            self.assertEqual({"name": "a", "version": 2}, self.replace(name="a"))

    def test_parsed_takes_what_it_knows(self):
        for text, expected in (('{"name": "a"}', Known("a")),
                               ('{"name": "a", "size": 3, "version": 9, "lease": [1]}', Known("a", 3))):
            self.assertEqual(expected, records.parsed(Known, text))

    def test_parsed_refuses_what_is_no_record(self):
        for text, error in (("[]", ValueError), ("{", ValueError), ("[" * 100_000, ValueError),
                            ('{"size": 1}', TypeError), ('{"name": "a", "version": 0}', ValueError),
                            ('{"name": "a", "version": "2"}', ValueError),
                            ('{"name": "a", "version": true}', ValueError)):
            self.assertRaises(error, records.parsed, Known, text)
