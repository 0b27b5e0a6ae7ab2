# SPDX-License-Identifier: Apache-2.0
import os
from unittest import mock

from containerhost.engines.docker.record import Record
from containerhost.linux.files import UNFINISHED
from tests.unit.containerhost.engines.test_docker_record import FULL, ID, RecordsCase


class RecordsTest(RecordsCase):
    def test_what_a_killed_writer_left_goes_with_the_next_writing_and_with_the_record(self):
        self.directory.mkdir()
        for _ in range(2):
            for act, left in ((lambda: self.records.write(ID, FULL), [f"{ID}.json"]),
                              (lambda: self.records.remove(ID), [])):
                child = os.fork()
                if not child:
                    with mock.patch("os.fsync", lambda fd: os._exit(0)):
                        self.records.write(ID, Record())
                os.waitpid(child, 0)
                self.assertIn(f"{UNFINISHED}{ID}", os.listdir(self.directory))
                act()
                self.assertEqual(left, os.listdir(self.directory))
