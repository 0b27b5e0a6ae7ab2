# SPDX-License-Identifier: Apache-2.0
import re
from pathlib import Path

import testtools
import yaml

NOTES = Path(__file__).resolve().parents[3] / "releasenotes" / "notes"
# Notes known to reno, which reads the repository's complete history; some checkouts lack it.
TEXT = {"prelude"}
LISTS = {"features", "issues", "upgrade", "deprecations", "critical", "security", "fixes", "other"}


class ReleaseNotesTest(testtools.TestCase):
    def test_reno_can_read_every_note(self) -> None:
        notes = sorted(NOTES.iterdir())
        self.assertNotEqual([], notes)
        for note in notes:
            self.assertRegex(note.name, r"^[a-z0-9-]+-[0-9a-f]{16}\.yaml$")
            for section, content in yaml.safe_load(note.read_text(encoding="utf-8")).items():
                self.assertIn(section, TEXT | LISTS, note.name)
                entries = content if section in LISTS else [content]
                self.assertTrue(all(isinstance(entry, str) and entry for entry in entries), f"{note.name}: {section}")

    def test_no_two_notes_have_one_id(self) -> None:
        ids = [re.findall(r"[0-9a-f]{16}", note.name)[-1] for note in NOTES.iterdir()]
        self.assertEqual(len(set(ids)), len(ids))
