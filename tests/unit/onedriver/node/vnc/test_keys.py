# SPDX-License-Identifier: Apache-2.0
import testtools

from onedriver.node.vnc.keys import Keyboard

CONTROL, ALT, SHIFT, UP, F1, F12 = 0xFFE3, 0xFFE9, 0xFFE1, 0xFF52, 0xFFBE, 0xFFC9


class KeysTest(testtools.TestCase):
    def typed(self, *keys: int, application: bool = False) -> bytes:
        """Return the bytes of keys that are all held down."""
        keyboard = Keyboard()
        return b"".join(keyboard.typed(key, True, application) for key in keys)

    def test_letters(self) -> None:
        for key, expected in ((ord("a"), b"a"), (0xE4, "ä".encode()), (0x010020AC, "€".encode()), (0xFF0D, b"\r"),
                              (0xFF08, b"\x7f"), (0xFFB7, b"7"), (0xFF1B, b"\x1b")):
            self.assertEqual(expected, self.typed(key))

    def test_what_is_no_letter_types_nothing(self) -> None:
        for key in (SHIFT, 0, 0x7F, 0x9B, 0x0100009B, 0x0100D800, 0x01000000, 0x01110000, 0xFFFFFFFF):
            self.assertEqual(b"", self.typed(key))

    def test_with_control_and_alt(self) -> None:
        self.assertEqual(b"\x03", self.typed(CONTROL, ord("c")))
        self.assertEqual(b"\x03", self.typed(CONTROL, SHIFT, ord("C")))
        self.assertEqual(b"\0", self.typed(CONTROL, ord(" ")))
        self.assertEqual(b"\x1f", self.typed(CONTROL, ord("_")))
        self.assertEqual("ß".encode(), self.typed(CONTROL, ord("ß")))
        self.assertEqual(b"\x1bx", self.typed(ALT, ord("x")))
        self.assertEqual(b"\x1b\x03", self.typed(ALT, CONTROL, ord("c")))

    def test_a_key_that_is_let_go_is_held_no_more(self) -> None:
        keyboard = Keyboard()
        self.assertEqual(b"", keyboard.typed(CONTROL, True, False))
        self.assertEqual(b"", keyboard.typed(CONTROL, False, False))
        self.assertEqual(b"c", keyboard.typed(ord("c"), True, False))
        self.assertEqual(b"", keyboard.typed(ord("c"), False, False))

    def test_keys_without_letters(self) -> None:
        self.assertEqual(b"\x1b[A", self.typed(UP))
        self.assertEqual(b"\x1bOA", self.typed(UP, application=True))
        self.assertEqual((b"\x1bOP", b"\x1b[24~"), (self.typed(F1), self.typed(F12)))
