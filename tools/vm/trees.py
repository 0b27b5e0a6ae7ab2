# SPDX-License-Identifier: Apache-2.0
"""Debian trees by mmdebstrap, and a disk image of one: QEMU in one of them, the guest in the other.

Packages come from where this machine's apt has Debian's from. The tree with QEMU also asks that place's backports,
because igb came with QEMU 8.0.
"""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

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
                  "e2fsprogs", "nftables", "iptables")
#: What the tests in the guest import beside containerhost's own requirements.
PYTHON_PACKAGES = ("fixtures", "stestr", "testtools", "PyYAML")
DISK_SIZE = "6G"  # sparse


class Failed(Exception):
    """With the words of the tool that failed."""


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
        archives, codename = sources(), release()
        debootstrap(self.qemu, codename, [*archives, *backports(archives, codename)], QEMU_PACKAGES,
                    f'APT::Default-Release "{codename}-backports"')
        debootstrap(self.guest, codename, archives, GUEST_PACKAGES)
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
        """For the guest's own Python, which need not be that of this machine."""
        version = os.readlink(self.guest / "usr/bin/python3").removeprefix("python")
        run([str(REPOSITORY / ".venv/bin/pip"), "install", "-q", "--disable-pip-version-check", "--target",
             str(self.guest / "opt/python"), "--python-version", version, "--only-binary=:all:", "-c",
             str(REPOSITORY / "constraints.txt"), "-r", str(REPOSITORY / "requirements.txt"), *PYTHON_PACKAGES])


def wanted() -> str:
    """Return what trees are made of, so that others are known to be old."""
    parts = [Path(__file__), REPOSITORY / "requirements.txt", REPOSITORY / "constraints.txt"]
    return hashlib.sha256(b"\0".join(part.read_bytes() for part in parts)).hexdigest()


def release() -> str:
    """Return the release of this machine.

    :raises Failed: this machine is no Debian: its apt has no Debian packages
    """
    text = Path("/etc/os-release").read_text(encoding="utf-8")
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    if values.get("ID") != "debian":
        raise Failed(f"the guest is made of this machine's Debian packages, but it is {values.get('PRETTY_NAME')}")
    return values["VERSION_CODENAME"]


def sources() -> list[str]:
    """Return this machine's sources of Debian packages, one a line as in sources.list(5).

    :raises Failed: it has none
    """
    told = run(["apt-get", "indextargets", "--format", "deb $(REPO_URI) $(RELEASE) $(COMPONENT)",
                "Created-By: Packages", "Origin: Debian"])
    found = [line for line in dict.fromkeys(told.splitlines()) if not line.split()[2].endswith("-backports")]
    if not found:
        raise Failed("apt knows of no Debian packages on this machine: run apt-get update")
    return found


def backports(archives: Sequence[str], codename: str) -> list[str]:
    return [line.replace(f" {codename} ", f" {codename}-backports ") for line in archives if f" {codename} " in line]


def debootstrap(tree: Path, codename: str, archives: Sequence[str], packages: Sequence[str], *options: str) -> None:
    settings = [f"--aptopt={option}" for option in ('APT::Install-Recommends "false"', *options)]
    # In a mount namespace of its own: what mmdebstrap mounts in the tree ends with it, however it ends.
    run(["unshare", "--mount", "mmdebstrap", "--quiet", "--variant=minbase", "--mode=root",
         f"--include={','.join(packages)}", *settings,
         *(f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in ("doc", "man", "locale")),
         codename, str(tree), "-"], "\n".join(archives) + "\n")


def run(command: Sequence[str], given: str = "") -> str:
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"`{' '.join(command)}` failed:\n{done.stderr[-4000:]}")
    return done.stdout
