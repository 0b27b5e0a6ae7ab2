# SPDX-License-Identifier: Apache-2.0
"""What overlayfs has of removed files becomes what a layer has of them."""

import io
import os
import stat
import tarfile
from pathlib import Path

import fixtures
import testtools

from containerhost.engines.docker import writtenlayer


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
        writtenlayer.write(base, target)
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
