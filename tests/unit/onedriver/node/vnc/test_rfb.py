# SPDX-License-Identifier: Apache-2.0
import struct

import testtools
from hypothesis import given
from hypothesis import strategies as st

from onedriver.node.vnc import rfb
from onedriver.node.vnc.rfb import Key, PixelFormat, UpdateRequest


class RfbTest(testtools.TestCase):
    def test_messages(self) -> None:
        for data, expected in (
                (struct.pack(">BBxxI", 4, 1, 0xFF0D), Key(0xFF0D, True)),
                (struct.pack(">BBHHHH", 3, 0, 0, 0, 640, 408), UpdateRequest(False)),
                (struct.pack(">BxHii", 2, 2, 0, -223), None),
                (struct.pack(">BBHH", 5, 1, 10, 10), None),
                (struct.pack(">BxxxI", 6, 3) + b"abc", None),
                (struct.pack(">BxxxBBBBHHHBBBxxx", 0, 16, 16, 1, 1, 31, 63, 31, 11, 5, 0),
                 PixelFormat(2, True, (31, 63, 31), (11, 5, 0)))):
            self.assertEqual((expected, len(data)), rfb.taken(data + b"\x04more"))
            for cut in range(len(data)):
                self.assertIsNone(rfb.taken(data[:cut]))

    def test_what_is_no_message(self) -> None:
        for data in (b"GET / HTTP/1.1\r\n\r\n", b"\xff", struct.pack(">BxxxI", 6, 1 << 30),
                     struct.pack(">BxxxBBBBHHHBBBxxx", 0, 24, 24, 0, 1, 255, 255, 255, 0, 8, 16),
                     struct.pack(">BxxxBBBBHHHBBBxxx", 0, 8, 8, 0, 0, 0, 0, 0, 0, 0, 0),
                     struct.pack(">BxxxBBBBHHHBBBxxx", 0, 32, 24, 0, 1, 255, 255, 255, 0, 8, 200)):
            self.assertRaises(rfb.NotRfb, rfb.taken, data)

    @given(st.binary(max_size=40))
    def test_nothing_else_is_raised(self, data: bytes) -> None:
        try:
            found = rfb.taken(data)
        except rfb.NotRfb:
            return
        self.assertTrue(found is None or 0 < found[1] <= len(data))

    def test_pixels(self) -> None:
        self.assertEqual(b"\x33\x22\x11\0", rfb.USUAL.pixel(0x112233))
        self.assertEqual(b"\0\x11\x22\x33", PixelFormat(4, True, (255,) * 3, (16, 8, 0)).pixel(0x112233))
        self.assertEqual(b"\xff\xff", PixelFormat(2, False, (31, 63, 31), (11, 5, 0)).pixel(0xFFFFFF))
        self.assertEqual(b"\x07", PixelFormat(1, False, (7, 7, 3), (0, 3, 6)).pixel(0xFF0000))
