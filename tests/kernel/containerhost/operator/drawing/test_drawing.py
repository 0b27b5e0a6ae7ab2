# SPDX-License-Identifier: Apache-2.0
"""A host that is drawn: two sockets, switches, containers with cores and devices, a sick GPU and a blocked one."""

import importlib.util
from pathlib import Path

import fixtures
import testtools
from click.testing import Result

from tests.unit.containerhost.operator.drawing.test_drawing import Busy, run


class CommandTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.busy = self.useFixture(Busy())
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)

    def topology(self, *arguments: str) -> Result:
        return run("topology", *arguments, "--root", str(self.busy.root))

    def test_png(self) -> None:
        if importlib.util.find_spec("cairosvg") is None:
            self.skipTest("cairosvg is not installed")
        file = self.directory / "host.png"
        self.assertEqual(0, self.topology("--png", str(file)).exit_code)
        self.assertEqual(b"\x89PNG\r\n\x1a\n", file.read_bytes()[:8])
