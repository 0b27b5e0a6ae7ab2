# SPDX-License-Identifier: Apache-2.0
"""Debian trees, and a disk image of one: QEMU in one of them, the guest in the other.

The tree with QEMU also asks the backports, because igb came with QEMU 8.0.
"""

import hashlib
import os
import shutil
from pathlib import Path

from tools import debian
from tools.debian import run

REPOSITORY = Path(__file__).resolve().parents[2]
#: The guest's first program: the source comes as a tar archive on a disk of its own, and goes on from there.
BEGIN = """#!/bin/sh
mount -o remount,rw /
mkdir -p /source
tar -x -C /source -f /dev/disk/by-id/virtio-source
exec sh /source/tools/vm/init
"""
QEMU_PACKAGES = ("qemu-system-x86",)
#: The kernel of clouds (linux-image-cloud-amd64) has no DRM drivers.
GUEST_PACKAGES = ("linux-image-amd64", "initramfs-tools", "kmod", "udev", "lxd", "apparmor", "iproute2", "python3",
                  "squashfs-tools", "xz-utils", "zstd", "libarchive-tools", "busybox-static", "btrfs-progs",
                  "e2fsprogs", "nftables", "iptables", "ibverbs-providers", "ibverbs-utils", "rdma-core",
                  "rdmacm-utils", "perftest")
#: What the tests in the guest import beside containerhost's own requirements.
PYTHON_PACKAGES = ("fixtures", "stestr", "testtools", "PyYAML")
DISK_SIZE = "6G"  # sparse


class Trees:
    """:param directory: in which they are made once, and again when what they are made of has changed
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.qemu, self.guest = directory / "qemu", directory / "guest"
        self.disk = self.qemu / "vm" / "disk"
        self._stamp = directory / "stamp"

    def ready(self) -> bool:
        return self._stamp.exists() and self._stamp.read_text() == wanted()

    def make(self) -> None:
        """Make the trees. This takes a few minutes, most of them for downloading 300 MB."""
        self._stamp.unlink(missing_ok=True)
        for tree in (self.qemu, self.guest):
            shutil.rmtree(tree, ignore_errors=True)
        self.directory.mkdir(parents=True, exist_ok=True)
        archives, codename = debian.sources(), debian.release()
        debian.debootstrap(self.qemu, codename, [*archives, *debian.backports(archives, codename)], QEMU_PACKAGES,
                           f'APT::Default-Release "{codename}-backports"')
        debian.debootstrap(self.guest, codename, archives, GUEST_PACKAGES)
        self._add_python()
        begin = self.guest / "vm-init"
        begin.write_text(BEGIN)
        begin.chmod(0o755)
        self.disk.parent.mkdir()
        for name in ("vmlinuz", "initrd.img"):
            shutil.copy(next((self.guest / "boot").glob(f"{name}-*")), self.disk.parent / name)
        self.disk.unlink(missing_ok=True)
        run(["mke2fs", "-q", "-t", "ext4", "-d", str(self.guest), str(self.disk), DISK_SIZE])
        shutil.rmtree(self.guest)
        self._stamp.write_text(wanted())

    def _add_python(self) -> None:
        """Install packages for the guest's own Python, which need not be that of this machine."""
        version = os.readlink(self.guest / "usr/bin/python3").removeprefix("python")
        run([str(REPOSITORY / ".venv/bin/pip"), "install", "-q", "--disable-pip-version-check", "--target",
             str(self.guest / "opt/python"), "--python-version", version, "--only-binary=:all:", "-c",
             str(REPOSITORY / "constraints.txt"), "-r", str(REPOSITORY / "requirements.txt"), *PYTHON_PACKAGES])


def wanted() -> str:
    """Return what trees are made of, so that others are known to be old."""
    parts = [Path(__file__), Path(debian.__file__), REPOSITORY / "requirements.txt", REPOSITORY / "constraints.txt"]
    return hashlib.sha256(b"\0".join(part.read_bytes() for part in parts)).hexdigest()
