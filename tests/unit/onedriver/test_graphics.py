# SPDX-License-Identifier: Apache-2.0
import testtools

from onedriver import document, graphics, vm
from onedriver.errors import BadInput
from onedriver.graphics import Vnc
from tests.unit.onedriver.samples import changed


class GraphicsTest(testtools.TestCase):
    def test_a_recorded_deployment_has_a_screen(self) -> None:
        found = vm.vm(document.parse(changed("deployment.xml"), "VM"))
        self.assertEqual(Vnc("127.0.0.1", 5901), graphics.vnc(1, found.graphics))

    def test_what_may_be_said(self) -> None:
        self.assertEqual(Vnc("::", 65535, "secret"), graphics.vnc(
            1, {"TYPE": "vnc", "LISTEN": "::", "PORT": "65535", "PASSWD": "secret"}))
        for ignored in ({}, {"TYPE": "SPICE"}, {"TYPE": "sdl"}, {"LISTEN": "0.0.0.0"}):
            self.assertIsNone(graphics.vnc(1, ignored))

    def test_what_may_not(self) -> None:
        for key, value in (("TYPE", "RDP"), ("PORT", ""), ("PORT", "22"), ("PORT", "5899"), ("PORT", "65536"),
                           ("PORT", "5901x"), ("LISTEN", "example.org"), ("LISTEN", "/run/socket"),
                           ("PASSWD", "päss"), ("PASSWD", "x" * 65)):
            wanted = {"TYPE": "VNC", "LISTEN": "0.0.0.0", "PORT": "5901"} | {key: value}
            error = self.assertRaises(BadInput, graphics.vnc, 7, wanted)
            self.assertIn(f"GRAPHICS of VM 7: {key} ", str(error))

    def test_a_password_is_in_no_message(self) -> None:
        self.assertNotIn("secret", repr(Vnc("::", 5900, "secret")))
        error = self.assertRaises(BadInput, graphics.vnc, 7, {"TYPE": "VNC", "PORT": "5901", "PASSWD": "secretä"})
        self.assertNotIn("secret", str(error))
