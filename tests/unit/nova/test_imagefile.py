import bz2
import gzip
import io
import lzma
import os
import tarfile
import tracemalloc
from pathlib import Path

import fixtures
import testtools
import zstandard

from nova_lxd_ext.image import imagefile, tarwalk
from nova_lxd_ext.image.imageerrors import BadImage, TooLarge
from nova_lxd_ext.image.imagefile import Format
from tests.unit.nova import imagekit


class ImageFileCase(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.useFixture(fixtures.TempDir()).path)

    def inspect(self, content: bytes, limit: int | None = None):
        path = self.folder / "no-suffix"
        path.write_bytes(content)
        return imagefile.inspect(path, limit)

    def assert_bad(self, words: str, content: bytes, limit: int | None = None) -> BadImage:
        error = self.assertRaises(BadImage, self.inspect, content, limit)
        self.assertIn(words, str(error))
        return error


class TestFormats(ImageFileCase):
    def test_tarballs(self):
        for suffix, compress in imagekit.COMPRESSORS.items():
            for form, content, architecture in ((Format.UNIFIED, imagekit.unified(), "x86_64"),
                                                (Format.ROOTFS, imagekit.rootfs(), None)):
                found = self.inspect(compress(content))
                self.assertEqual(imagefile.ImageFile(form, len(content), architecture), found, (suffix, form))

    def test_metadata_may_come_last(self):
        files = {"rootfs/bin/sh": b"x", "./metadata.yaml": imagekit.METADATA}
        self.assertEqual("x86_64", self.inspect(imagekit.tar(files)).architecture)

    def test_tar_dialects(self):
        long_name = "bin/" + "d" * 90 + "/" + "f" * 150
        for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
            files = {"bin/sh": b"x"} if form == tarfile.USTAR_FORMAT else {long_name: b"x", "bin/ünïcode": b"y"}
            self.assertEqual(Format.ROOTFS, self.inspect(imagekit.tar(files, form)).format, form)

    def test_old_tar_without_magic(self):
        content = bytearray(imagekit.tar({"bin/sh": b"x"}, tarfile.USTAR_FORMAT))
        for start in range(0, 1024, 512):
            content[start + 257:start + 265] = bytes(8)
            content[start + 148:start + 156] = b" " * 8
            content[start + 148:start + 156] = b"%06o\0 " % sum(content[start:start + 512])
        self.assertEqual(Format.ROOTFS, self.inspect(bytes(content)).format)

    def test_squashfs(self):
        found = self.inspect(imagekit.squashfs(self.folder))
        self.assertEqual(Format.SQUASHFS, found.format)
        self.assertEqual(sum(map(len, imagekit.ROOT.values())), found.unpacked)

    def test_squashfs_on_a_machine_that_cannot_list_it(self):
        """Then its own length is the least it takes, and the superblock is all that can be checked."""
        content = imagekit.squashfs(self.folder, {"bin/big": bytes(5_000_000)})
        self.useFixture(fixtures.EnvironmentVariable("PATH", str(self.folder)))
        found = self.inspect(content)
        self.assertEqual(Format.SQUASHFS, found.format)
        self.assertLessEqual(found.unpacked, len(content))
        self.assert_bad("damaged", content[:200])

    def test_streams_behind_each_other(self):
        content = imagekit.rootfs()
        half = len(content) // 2
        for compress in (gzip.compress, lzma.compress, zstandard.compress, bz2.compress):
            joined = compress(content[:half]) + compress(content[half:])
            self.assertEqual(len(content), self.inspect(joined).unpacked, compress)

    def test_not_bootable(self):
        for words, content in (
                ("QCOW2", b"QFI\xfb" + bytes(4096)),
                ("unknown format", b""),
                ("unknown format", b"hello"),
                ("unknown format", bytes(1024)),
                ("no root file system", imagekit.tar({"readme.txt": b"hello"})),
                ("other half", imagekit.tar({"metadata.yaml": imagekit.METADATA})),
                ("Docker or OCI", imagekit.tar({"oci-layout": b"{}", "index.json": b"{}"})),
                ("names no architecture", imagekit.unified(b"creation_date: 1\n")),
                ("names no architecture", imagekit.tar({"metadata.yaml/x": b"", "rootfs/bin/sh": b""}))):
            self.assert_bad(words, content)

    def test_squashfs_not_bootable(self):
        unified = {"metadata.yaml": imagekit.METADATA} | {f"rootfs/{name}": b"" for name in imagekit.ROOT}
        self.assert_bad("unified LXD image as squashfs", imagekit.squashfs(self.folder, unified))


class TestDamage(ImageFileCase):
    def test_every_truncation(self):
        """Wherever a file is cut, it is refused: nothing half is ever imported."""
        for suffix, compress in imagekit.COMPRESSORS.items():
            content = compress(imagekit.unified())
            # A plain tar's padding behind the end mark may be missing: nothing is lost with it.
            whole = 1024 * 9 if suffix == "tar" else len(content)
            for length in (*range(4, min(whole, 600), 61), whole // 2, whole - 1):
                error = self.assertRaises(BadImage, self.inspect, content[:length])
                self.assertNotIn("None", str(error), suffix)

    def test_flipped_bits(self):
        for suffix, compress in imagekit.COMPRESSORS.items():
            content = bytearray(compress(imagekit.unified(files={"bin/sh": os.urandom(20_000)})))
            if suffix == "zst":
                params = zstandard.ZstdCompressionParameters(write_checksum=True)
                content = bytearray(zstandard.ZstdCompressor(compression_params=params).compress(
                    imagekit.unified(files={"bin/sh": os.urandom(20_000)})))
            # A plain tar guards its headers only; the rest is what Glance's checksum is for.
            place = 512 * 2 + 3 if suffix == "tar" else len(content) // 2
            content[place] ^= 0xFF
            self.assert_bad("damaged", bytes(content))

    def test_squashfs_cut_and_lied(self):
        content = imagekit.squashfs(self.folder)
        for length in (4, 50, 96, 200):
            self.assert_bad("damaged", content[:length])
        self.assert_bad("version 3.9", content[:28] + b"\x03\x00\x09\x00" + content[32:])
        self.assert_bad("contradicts", content[:12] + b"\x01\x02\x03\x00" + content[16:])
        # The inode table behind a whole superblock is garbage: unsquashfs finds that.
        self.assert_bad("damaged", content[:96] + b"\xa5" * (len(content) - 96))


class TestHostileSizes(ImageFileCase):
    def test_limit(self):
        content = imagekit.unified()
        self.assertEqual(len(content), self.inspect(gzip.compress(content), len(content)).unpacked)
        error = self.assertRaises(TooLarge, self.inspect, gzip.compress(content), len(content) - 1)
        self.assertEqual(len(content) - 1, error.limit)
        self.assertGreater(error.size, error.limit)

    def test_squashfs_limit(self):
        content = imagekit.squashfs(self.folder, {"bin/big": bytes(5_000_000)})
        self.assertThat(len(content), testtools.matchers.LessThan(100_000))
        self.assertRaises(TooLarge, self.inspect, content, 4_999_999)
        self.assertEqual(5_000_000, self.inspect(content, 5_000_000).unpacked)

    def test_a_bomb_stops_at_the_limit_and_keeps_memory_low(self):
        bomb = lzma.compress(imagekit.tar({"bin/zeros": bytes(64 * 1024 ** 2)}), preset=0)
        path = self.folder / "bomb"
        path.write_bytes(bomb)
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        self.assertRaises(TooLarge, imagefile.inspect, path, 8 * 1024 ** 2)
        self.assertThat(tracemalloc.get_traced_memory()[1], testtools.matchers.LessThan(8 * 1024 ** 2))

    def test_a_header_that_claims_gigabytes(self):
        member = tarfile.TarInfo("x")
        member.type, member.size = tarfile.XHDTYPE, 5 * 1024 ** 3
        header = member.tobuf(tarfile.GNU_FORMAT)
        self.assert_bad("extended header claims", gzip.compress(header + bytes(10_000_000)))

    def test_a_dictionary_that_claims_gigabytes(self):
        filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 30}]
        # liblzma shrinks nothing: the header keeps the claimed size however short the content is.
        content = lzma.compress(imagekit.rootfs(), format=lzma.FORMAT_XZ, filters=filters)
        self.assert_bad("damaged: Memory usage limit", content)


class TestTarWalk(testtools.TestCase):
    def walk(self, content: bytes, wanted=()):
        return list(tarwalk.members(io.BytesIO(content).read, wanted))

    def test_names_and_contents_as_tarfile_sees_them(self):
        files = {"a" * 120 + "/b": b"1", "metadata.yaml": b"two", "c/d": b"3" * 513, "e": b""}
        for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
            content = imagekit.tar(files, form)
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                expected = [(member.name, member.isdir()) for member in archive]
            found = self.walk(content, wanted=("metadata.yaml", "e"))
            self.assertEqual(expected, [(member.name, member.folder) for member in found])
            self.assertEqual({"metadata.yaml": b"two", "e": b""},
                             {member.name: member.content for member in found if member.content is not None})

    def test_sizes_beyond_eight_gigabytes(self):
        for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
            member = tarfile.TarInfo("big")
            member.size = 9 * 1024 ** 3
            error = self.assertRaises(tarwalk.BadTar, self.walk, member.tobuf(form) + bytes(4096))
            self.assertIn("ends in 'big'", str(error))

    def test_links_have_no_data(self):
        link = tarfile.TarInfo("link")
        link.type, link.linkname, link.size = tarfile.LNKTYPE, "target", 4096
        content = link.tobuf() + imagekit.tar({"after": b"x"})
        self.assertEqual(["link", "after"], [member.name for member in self.walk(content)])
