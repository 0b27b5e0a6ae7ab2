# SPDX-License-Identifier: Apache-2.0
import bz2
import errno
import gzip
import io
import json
import lzma
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import fixtures
import testtools
import zstandard

from containerhost.errors import EngineError, EngineTimeout
from containerhost.images import rebuild, source, worker
from containerhost.images.errors import BadImage, TooLarge
from containerhost.images.members import Stream
from containerhost.images.rootfs import Format, Rebuild, Rebuilt
from containerhost.images.writer import Writer
from tests.unit.containerhost.images import imagekit
from tests.waiting import await_that

TIMEOUT = 60  # s


class RebuildCase(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)

    def inspect(self, content: bytes, limit: int | None = None):
        path = self.directory / "no-suffix"
        path.write_bytes(content)
        with path.open("rb") as file, (self.directory / "new").open("wb") as target:
            return rebuild.rebuild(file, target, limit, TIMEOUT)

    def unpacked(self) -> int:
        """Bytes of the new archive."""
        new = (self.directory / "new").read_bytes()
        return len(zstandard.ZstdDecompressor().stream_reader(new).read())

    def assert_bad(self, words: str, content: bytes, limit: int | None = None) -> BadImage:
        error = self.assertRaises(BadImage, self.inspect, content, limit)
        self.assertIn(words, str(error))
        return error


class TestFormats(RebuildCase):
    def test_tarballs(self):
        for suffix, compress in imagekit.COMPRESSORS.items():
            for form, content, architecture in ((Format.UNIFIED, imagekit.unified(), "x86_64"),
                                                (Format.ROOTFS, imagekit.rootfs(), None)):
                found = self.inspect(compress(content))
                self.assertEqual(Rebuilt(form, self.unpacked(), architecture), found, (suffix, form))

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
        found = self.inspect(imagekit.squashfs(self.directory))
        self.assertEqual(Format.SQUASHFS, found.format)
        self.assertEqual(self.unpacked(), found.unpacked)

    def test_streams_behind_each_other(self):
        content = imagekit.rootfs()
        half = len(content) // 2
        for compress in (gzip.compress, lzma.compress, zstandard.compress, bz2.compress):
            joined = compress(content[:half]) + compress(content[half:])
            self.assertEqual(self.inspect(joined).unpacked, self.unpacked(), compress)

    def test_zeros_behind_the_image_are_ignored(self):
        """A disk that was enlarged to its SIZE ends in them."""
        for suffix, compress in imagekit.COMPRESSORS.items():
            packed = compress(imagekit.unified())
            found = self.inspect(packed + bytes((1 << 20) - len(packed)))
            self.assertEqual(Rebuilt(Format.UNIFIED, self.unpacked(), "x86_64"), found, suffix)

    def test_other_bytes_behind_a_zst_image_are_damage(self):
        packed = zstandard.compress(imagekit.unified())
        for tail in (b"x" * 4096, bytes(4096) + b"x" * 512):
            self.assert_bad("damaged: unsupported format", packed + tail)

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

    def test_squashfs_without_room_for_its_copy(self):
        full = OSError(errno.ENOSPC, "No space left on device")
        self.useFixture(fixtures.MockPatch("containerhost.images.rebuild.shutil.copyfileobj", side_effect=full))
        error = self.assertRaises(EngineError, self.inspect, imagekit.squashfs(self.directory))
        self.assertIn("No space left", str(error))

    def test_squashfs_not_bootable(self):
        unified = {"metadata.yaml": imagekit.METADATA} | {f"rootfs/{name}": b"" for name in imagekit.ROOT}
        self.assert_bad("unified LXD image as squashfs", imagekit.squashfs(self.directory, unified))


class TestDamage(RebuildCase):
    def rebuilt_here(self, content: bytes) -> Rebuilt:
        """Do what the worker does, without its process."""
        with tempfile.TemporaryFile() as image:
            image.write(content)
            image.seek(0)
            with source.opened(image.fileno(), source.head(image.fileno())) as tar:
                return Rebuild(Stream(tar, 1 << 30), Writer(io.BytesIO()), squashed=False).run()

    def test_every_truncation(self):
        """Wherever a file is cut, it is refused: nothing half is ever imported."""
        for suffix, compress in imagekit.COMPRESSORS.items():
            content = compress(imagekit.unified())
            # A plain tar's padding behind the end mark may be missing: nothing is lost with it.
            whole = 1024 * 9 if suffix == "tar" else len(content)
            self.rebuilt_here(content)
            for length in (*range(4, min(whole, 600), 61), whole // 2, whole - 1):
                error = self.assertRaises(BadImage, self.rebuilt_here, content[:length])
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
        content = imagekit.squashfs(self.directory)
        for length in (4, 50, 96, 200):
            self.assert_bad("damaged", content[:length])
        # The inode table behind a whole superblock is garbage: sqfs2tar finds that.
        self.assert_bad("damaged", content[:96] + b"\xa5" * (len(content) - 96))


class TestHostileSizes(RebuildCase):
    def test_limit(self):
        content = imagekit.unified()
        self.inspect(gzip.compress(content), len(content))
        error = self.assertRaises(TooLarge, self.inspect, gzip.compress(content), len(content) - 1)
        self.assertEqual(len(content) - 1, error.limit)
        self.assertGreater(error.size, error.limit)

    def test_squashfs_limit(self):
        content = imagekit.squashfs(self.directory, {"bin/big": bytes(5_000_000)})
        self.assertThat(len(content), testtools.matchers.LessThan(100_000))
        self.assertRaises(TooLarge, self.inspect, content, 4_999_999)
        self.assertEqual(self.inspect(content, 5_100_000).unpacked, self.unpacked())

    def test_size_of_one_root_is_one_whatever_is_beside_it(self):
        plain = self.inspect(imagekit.unified()).unpacked
        for content in (imagekit.unified() + bytes(5_000_000),
                        imagekit.tar({"metadata.yaml": imagekit.METADATA, "templates/big": bytes(5_000_000)} | {
                            f"rootfs/{name}": content for name, content in imagekit.ROOT.items()})):
            self.assertEqual(plain, self.inspect(content).unpacked)

    def test_a_bomb_stops_at_the_limit(self):
        bomb = lzma.compress(imagekit.tar({"bin/zeros": bytes(64 * 1024 ** 2)}), preset=0)
        self.assert_bad("8388608 are allowed", bomb, 8 * 1024 ** 2)

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

    def test_members_without_end(self):
        self.useFixture(fixtures.MonkeyPatch("containerhost.images.members.MEMBERS_LIMIT", 100))
        content = imagekit.tar({f"bin/{number}": b"" for number in range(101)})
        stream = Stream(io.BytesIO(content), 1 << 30)
        error = self.assertRaises(BadImage, Rebuild(stream, Writer(io.BytesIO()), squashed=False).run)
        self.assertIn("more than 100 members", str(error))

    def test_names_without_end(self):
        self.useFixture(fixtures.MonkeyPatch("containerhost.images.rootfs.TREE_LIMIT", 1000))
        content = imagekit.tar({f"bin/{number:0100}": b"" for number in range(20)})
        stream = Stream(io.BytesIO(content), 1 << 30)
        error = self.assertRaises(BadImage, Rebuild(stream, Writer(io.BytesIO()), squashed=False).run)
        self.assertIn("more than 1000 bytes", str(error))


class TestConfined(RebuildCase):
    """Test the rights of a program that a tenant's bytes took over."""

    def test_programs_that_unpack_have_no_rights(self):
        programs = self.directory / "programs"
        programs.mkdir()
        programs.parent.chmod(0o755)
        xz = programs / "xz"
        xz.write_text("#!/bin/sh\n{ id -u; id -G; grep -c : /proc/net/dev; grep NoNewPrivs /proc/self/status; "
                      "ulimit -v; } | tr '\\n' ' ' >&2\nexit 1\n")
        xz.chmod(0o755)
        self.useFixture(fixtures.EnvironmentVariable("PATH", f"{programs}:{os.environ['PATH']}"))
        error = self.assert_bad("damaged", lzma.compress(imagekit.rootfs()))
        uid = 65534 if os.geteuid() == 0 else os.geteuid()
        expected = rf"damaged: {uid} .*NoNewPrivs:\s+1 {worker.MEMORY >> 10}"
        self.assertRegex(str(error), expected)
        if os.geteuid() == 0:
            # Only the loopback device.
            self.assertIn("damaged: 65534 65534 1 ", str(error))

    def test_image_that_costs_more_than_its_disk_allows_is_bad(self):
        header = tarfile.TarInfo("directory")
        header.type = tarfile.DIRTYPE
        with tempfile.TemporaryFile() as image:
            for _ in range(300):
                image.write(header.tobuf() * 1000)
            image.seek(0)
            done = subprocess.run([sys.executable, "-m", rebuild.WORKER, "rootfs", str(1 << 30), "1"], stdin=image,
                                  capture_output=True, check=False)
        self.assertEqual({"bad": "reading it takes more than 1 s of a processor"},
                         json.loads(done.stderr.rpartition(b"\n")[2]))

    def test_nothing_runs_on_when_the_time_is_over(self):
        programs = self.directory / "programs"
        programs.mkdir()
        programs.parent.chmod(0o755)
        xz = programs / "xz"
        xz.write_text(f"#!/bin/sh\nexec sleep 987.{os.getpid()}\n")
        xz.chmod(0o755)
        self.useFixture(fixtures.EnvironmentVariable("PATH", f"{programs}:{os.environ['PATH']}"))
        path = self.directory / "image"
        path.write_bytes(lzma.compress(imagekit.rootfs()))
        with path.open("rb") as file, (self.directory / "new").open("wb") as target:
            self.assertRaises(EngineTimeout, rebuild.rebuild, file, target, None, 3)
        await_that(lambda: f"987.{os.getpid()}" not in subprocess.run(
            ["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout, "the program has ended")

    def test_worker_that_no_signal_ends_is_left_behind(self):
        """As one in state D: its pipes stay open."""
        self.useFixture(fixtures.MonkeyPatch("containerhost.images.rebuild.KILL_TIMEOUT", 0.1))
        self.useFixture(fixtures.MonkeyPatch("containerhost.linux.run.KILL_TIMEOUT", 0.1))
        self.useFixture(fixtures.MonkeyPatch("containerhost.images.rebuild.ISOLATED", ("sh", "-c", "exec sleep 20")))
        self.useFixture(fixtures.MonkeyPatch("os.geteuid", lambda: 0))
        kill, killed = os.killpg, self.useFixture(fixtures.MockPatch("os.killpg")).mock
        began = time.monotonic()
        with tempfile.TemporaryFile() as image, tempfile.TemporaryFile() as target:
            self.assertRaises(EngineTimeout, rebuild.rebuild, image, target, None, 1)
            with rebuild.layers(image, "sha256:a", 1) as worker:
                self.assertRaises(EngineTimeout, worker.read, 1)
        self.assertLess(time.monotonic() - began, 15)
        for pid in {call.args[0] for call in killed.call_args_list}:
            kill(pid, signal.SIGKILL)
