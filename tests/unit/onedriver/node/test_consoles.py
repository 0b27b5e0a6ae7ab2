# SPDX-License-Identifier: Apache-2.0
import os
import time
from pathlib import Path
from unittest import mock

import fixtures
import testtools

from onedriver.graphics import Vnc
from onedriver.node import consoles
from onedriver.node.consoles import Record
from tests.unit.containerhost.linux.test_records import lease, of_first_release, of_later_release

VNC = Vnc("0.0.0.0", 5907, "secret")


class TestRecord(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.file = Path(self.useFixture(fixtures.TempDir()).path) / "one-7" / consoles.FILE

    def test_read_as_written_and_for_root_alone(self) -> None:
        consoles.write(self.file, Record(VNC, 7))
        self.assertEqual(Record(VNC, 7), consoles.read(self.file))
        self.assertEqual(0o600, self.file.stat().st_mode & 0o777)

    def test_records_of_other_releases_are_used_and_their_fields_kept(self) -> None:
        consoles.write(self.file, Record(VNC, 7))
        for release in (of_first_release, of_later_release):
            release(self.file)
            self.assertEqual(Record(VNC, 7), consoles.read(self.file))
        consoles.write(self.file, Record(VNC, 8))
        self.assertEqual((9, [1]), lease(self.file))
        self.assertEqual(Record(VNC, 8), consoles.read(self.file))

    def test_a_console_that_died_comes_back_though_the_clock_was_set_back(self) -> None:
        consoles.write(self.file, Record(VNC, 7))
        found = consoles.Consoles(self.file.parents[1], "module", lambda name: 7)
        with mock.patch.object(consoles.single_instance, "is_held", return_value=False):
            for moved, dead in ((0, ()), (-61, ("one-7",)), (3600, ("one-7",))):
                os.utime(self.file, times=(time.time() + moved,) * 2)
                self.assertEqual(dead, found.dead(["one-7"]))

    def test_what_is_no_record_is_none(self) -> None:
        self.file.parent.mkdir()
        self.assertIsNone(consoles.read(self.file))
        for text in ("", "[]", "{}", '{"vnc": 1, "pid": 2}', '{"vnc": {}, "pid": 2}'):
            self.file.write_text(text)
            self.assertIsNone(consoles.read(self.file))
