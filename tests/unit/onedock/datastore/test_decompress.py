# SPDX-License-Identifier: Apache-2.0
import io
import lzma
import zlib

import testtools

from onedock.datastore import decompress

CONTENT = bytes(range(256)) * 3000
HEADER = 12  # bytes of an xz stream before its first block
GIB = 0x24  # of a dictionary, as a block's header has it (xz-file-format, 5.3.1)


class XzTest(testtools.TestCase):
    def read(self, packed: bytes) -> bytes:
        with decompress.reader(io.BytesIO(packed)) as stream:
            return stream.read()

    def test_streams_one_after_another(self) -> None:
        for packed, expected in ((lzma.compress(CONTENT), CONTENT), (lzma.compress(b""), b""),
                                 (lzma.compress(CONTENT) + bytes(8) + lzma.compress(b"more"), CONTENT + b"more"),
                                 (lzma.compress(CONTENT) + bytes(4 * decompress.BUFFER), CONTENT),
                                 (lzma.compress(b"") + bytes(4 * decompress.BUFFER) + lzma.compress(b"more"), b"more")):
            self.assertEqual(expected, self.read(packed))

    def test_what_is_cut_or_damaged_is_told(self) -> None:
        packed = lzma.compress(CONTENT)
        for broken in (packed[:-1], packed[:40], packed[:60] + b"damage" + packed[66:], packed + b"more"):
            self.assertRaises(decompress.DAMAGED, self.read, broken)

    def test_one_that_wants_much_memory_is_refused(self) -> None:
        packed = bytearray(lzma.compress(CONTENT))
        size = 4 * (packed[HEADER] + 1)
        block = packed[HEADER:HEADER + size - 4]
        block[4] = GIB
        packed[HEADER:HEADER + size] = block + zlib.crc32(block).to_bytes(4, "little")
        self.assertEqual(CONTENT, lzma.decompress(packed))
        self.assertIn("limit", str(self.assertRaises(lzma.LZMAError, self.read, bytes(packed))))
