# SPDX-License-Identifier: Apache-2.0
"""A datastore in a directory of its own, and its driver's actions as oned calls them."""

import os
from pathlib import Path

import fixtures
import testtools

from onedock.datastore import actions
from tests.unit.onedock.messages import message


class DatastoreTestCase(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.files = Path(self.useFixture(fixtures.TempDir()).path)
        self.base = self.files / "101"
        self.addCleanup(os.umask, os.umask(0o022))

    def act(self, action: str, image: dict[str, str] | None = None, **attributes: str) -> str:
        return actions.act(action, ["7"], message(self.base, image, self.files, **attributes)) or ""

    def registered(self, path: Path, **attributes: str) -> Path:
        source, format = self.act("cp", {"PATH": str(path)}, **attributes).split()
        self.assertEqual("raw", format)
        return Path(source)

    def file(self, content: bytes, name: str = "archive") -> Path:
        (self.files / name).write_bytes(content)
        return self.files / name

    def layers(self) -> dict[str, int]:
        """Digests of the layers, each with the number of its links."""
        return {f"sha256:{path.name}": path.stat().st_nlink for path in (self.base / ".layers").iterdir()}

    def left(self) -> list[str]:
        return sorted(str(path.relative_to(self.base)) for path in self.base.rglob("*") if path.is_file())

    def assert_refused(self, kind: type[Exception], words: str, path: Path | str, **attributes: str) -> None:
        """Nothing of it is kept."""
        error = self.assertRaises(kind, self.act, "cp", {"PATH": str(path)}, **attributes)
        self.assertIn(words, str(error))
        self.assertEqual([], self.left())
