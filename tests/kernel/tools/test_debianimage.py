# SPDX-License-Identifier: Apache-2.0
"""Test images that are made of Debian's packages; a few files are in the place of these."""

import io
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import fixtures
import testtools

from tools.debianimage import DebianImage, File

FILES = {"etc/network/interfaces": File(b"auto lo\n"), "usr/local/bin/ranks": File(b"#!/bin/sh\n", 0o755)}
LONG = f"usr/lib/{'x' * 120}"  # longer than the field of a header of tar
LINKS = {"usr/sbin/init": "/bin/busybox"}


class DebianImageTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.cache = Path(self.useFixture(fixtures.TempDir()).path)
        self.useFixture(fixtures.MonkeyPatch("tools.debian.debootstrap", self.debootstrap))
        self.useFixture(fixtures.MonkeyPatch("tools.debian.release", lambda: "bookworm"))
        self.useFixture(fixtures.MonkeyPatch("tools.debian.sources", list))
        self.unpackings = 0

    def debootstrap(self, tree: Path, *_: Any) -> None:
        self.unpackings += 1
        with tarfile.open(tree, "w") as tar:
            for name, kind, target in (("./", tarfile.DIRTYPE, ""), ("./dev/null", tarfile.CHRTYPE, ""),
                                       ("./usr/bin/perl", tarfile.REGTYPE, ""),
                                       ("./usr/bin/perl5", tarfile.LNKTYPE, "./usr/bin/perl"),
                                       ("./usr/lib/gcc/12/cc1", tarfile.REGTYPE, ""),
                                       (f"./{LONG}", tarfile.REGTYPE, ""),
                                       ("./usr/lib/y", tarfile.LNKTYPE, f"./{LONG}"),
                                       ("./etc/ssh/ssh_host_rsa_key", tarfile.REGTYPE, ""),
                                       ("./usr/sbin/init", tarfile.SYMTYPE, "/lib/systemd/systemd"),
                                       ("./etc/network/interfaces", tarfile.REGTYPE, "")):
                entry = tarfile.TarInfo(name)
                entry.type, entry.linkname = kind, target
                tar.addfile(entry, io.BytesIO())

    def image(self, **changes: Any) -> DebianImage:
        return DebianImage(**{"cache": self.cache, "packages": ("perl", "gcc"), "files": FILES, "links": LINKS,
                              "left_out": ("usr/lib/gcc/*",), **changes})

    def test_no_devices_no_keys_that_all_containers_would_share_and_nothing_left_out(self) -> None:
        self.assertEqual({"usr/bin/perl", "usr/bin/perl5", "usr/sbin/init", LONG, "usr/lib/y", *FILES},
                         set(self.names(self.image().plain(print))))

    def test_links_lead_below_the_root_file_system(self) -> None:
        names = self.names(self.image().unified(print))
        self.assertEqual("rootfs/usr/bin/perl", names["rootfs/usr/bin/perl5"])
        self.assertEqual("/bin/busybox", names["rootfs/usr/sbin/init"])
        self.assertEqual(f"rootfs/{LONG}", names["rootfs/usr/lib/y"])
        self.assertEqual(set(), {name for name in names if not name.startswith("rootfs/")} - {"metadata.yaml"})

    def test_no_file_is_there_twice(self) -> None:
        """The drivers refuse such an image."""
        with tarfile.open(self.unpacked(self.image().unified(print))) as tar:
            names = tar.getnames()
            self.assertEqual(b"auto lo\n", tar.extractfile("rootfs/etc/network/interfaces").read())
            self.assertEqual(0o755, tar.getmember("rootfs/usr/local/bin/ranks").mode)
        self.assertEqual(len(set(names)), len(names))

    def test_made_once(self) -> None:
        first = self.image().plain(print).stat().st_mtime_ns
        self.assertEqual(first, self.image().plain(print).stat().st_mtime_ns)
        self.assertEqual(1, self.unpackings)

    def test_made_anew_when_a_file_of_its_own_changes(self) -> None:
        self.image().plain(print)
        changed = self.image(files={**FILES, "etc/hosts": File(b"127.0.0.1 localhost\n")}).plain(print)
        self.assertIn("etc/hosts", self.names(changed))
        self.assertEqual(1, self.unpackings, "the packages are the same")
        self.image(packages=("perl",)).plain(print)
        self.assertEqual(2, self.unpackings)

    def names(self, path: Path) -> dict[str, str]:
        with tarfile.open(self.unpacked(path)) as tar:
            return {entry.name: entry.linkname for entry in tar}

    @staticmethod
    def unpacked(path: Path) -> str:
        subprocess.run(["zstd", "-dqf", str(path), "-o", f"{path}.tar"], check=True, timeout=60)
        return f"{path}.tar"
