# SPDX-License-Identifier: Apache-2.0
"""What overlayfs has of removed files becomes what a layer has of them."""

import contextlib
import io
import mmap
import os
import stat
import tarfile
import time
from pathlib import Path

import fixtures
import testtools

from containerhost.engines.docker import layerwriter
from containerhost.engines.docker.layerwriter import UNBOUNDED, Target


class OverlayTest(testtools.TestCase):
    def test_whiteouts_opaque_directories_and_nodes(self) -> None:
        base = Path(self.useFixture(fixtures.TempDir()).path)
        (base / "replaced").mkdir()
        (base / "kept").mkdir()
        os.setxattr(base / "replaced", "trusted.overlay.opaque", b"y")
        os.mknod(base / "kept/gone", stat.S_IFCHR, os.makedev(0, 0))
        os.mknod(base / "kept/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        os.mkfifo(base / "kept/fifo")
        (base / "kept/program").touch()
        capability = bytes.fromhex("0100000200200000000000000000000000000000")
        os.setxattr(base / "kept/program", "security.capability", capability)
        os.chown(base / "kept", 100_000, 3_000_000)
        target = io.BytesIO()
        layerwriter.write(base, Target(target, UNBOUNDED))
        target.seek(0)
        with tarfile.open(fileobj=target) as layer:
            found = {member.name.removeprefix("./"): member for member in layer}
        self.assertEqual({"kept", "kept/.wh.gone", "kept/fifo", "kept/null", "kept/program", "replaced",
                          "replaced/.wh..wh..opq"}, set(found))
        self.assertTrue(found["kept/.wh.gone"].isreg() and found["replaced/.wh..wh..opq"].isreg())
        self.assertEqual((1, 3), (found["kept/null"].devmajor, found["kept/null"].devminor))
        self.assertEqual((100_000, 3_000_000), (found["kept"].uid, found["kept"].gid))
        self.assertEqual(capability, found["kept/program"].pax_headers["SCHILY.xattr.security.capability"].encode(
            "utf-8", "surrogateescape"))


class MappedTest(testtools.TestCase):
    def test_mapped_page_that_is_written_again_is_not_missed(self) -> None:
        """The kernel changes the file's time only at the first write to a page, until that is on the disk."""
        self.useFixture(fixtures.MockPatchObject(layerwriter, "SETTLED", 30 * 10**6))
        base = Path(self.useFixture(fixtures.TempDir(rootdir="/var/tmp")).path)
        (base / "a").write_bytes(bytes(4096))
        with (base / "a").open("r+b") as file, mmap.mmap(file.fileno(), 4096) as page:
            page[0] = 1
            time.sleep(0.1)
            began = layerwriter.begin(base, contextlib.nullcontext())
            entries = layerwriter.write(base, Target(io.BytesIO(), UNBOUNDED), began=began)
            self.assertGreater(entries["a"].changed, 0)
            page[0] = 2
            target = io.BytesIO()
            layerwriter.write(base, Target(target, UNBOUNDED), entries)
        with tarfile.open(fileobj=io.BytesIO(target.getvalue())) as layer:
            self.assertEqual(b"\2", layer.extractfile("./a").read()[:1])  # type: ignore[union-attr]
