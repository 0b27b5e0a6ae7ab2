# SPDX-License-Identifier: Apache-2.0
import testtools

from lxdone.disk import diskformat
from lxdone.disk.diskformat import Format


def head(*pieces: tuple[int, bytes]) -> bytes:
    content = bytearray(diskformat.HEAD)
    for place, magic in pieces:
        content[place:place + len(magic)] = magic
    return bytes(content)


class FormatTest(testtools.TestCase):
    def test_each_is_told_by_its_first_bytes(self) -> None:
        for place, magic, expected in diskformat.MAGICS:
            self.assertEqual(expected, diskformat.of(head((place, magic))), magic)

    def test_a_boot_sector_makes_no_partitions_of_a_file_system(self) -> None:
        self.assertEqual(Format.EXT, diskformat.of(head((510, b"\x55\xaa"), (1080, b"\x53\xef"))))

    def test_nothing_known(self) -> None:
        for content in (b"", b"\x1f", head()):
            self.assertEqual(Format.UNKNOWN, diskformat.of(content))
