# SPDX-License-Identifier: Apache-2.0
"""A host that is drawn: two sockets, switches, containers with cores and devices, a sick GPU and a blocked one."""

import importlib.util

from tests.unit.containerhost.operator.drawing.test_drawing import CommandCase


class CommandTest(CommandCase):
    def test_png(self) -> None:
        if importlib.util.find_spec("cairosvg") is None:
            self.skipTest("cairosvg is not installed")
        file = self.directory / "host.png"
        self.assertEqual(0, self.topology("--png", str(file)).exit_code)
        self.assertEqual(b"\x89PNG\r\n\x1a\n", file.read_bytes()[:8])
