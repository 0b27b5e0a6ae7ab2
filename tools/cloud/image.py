# SPDX-License-Identifier: Apache-2.0
"""A container image small enough to build in a moment: busybox as a unified LXD tarball (metadata.yaml and rootfs/)."""

import contextlib
import io
import platform
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

FILES = {
    "rootfs/etc/passwd": "root:x:0:0:root:/root:/bin/sh\n",
    "rootfs/etc/shadow": "root:*:20000:0:99999:7:::\n",
    "rootfs/etc/group": "root:x:0:\n",
    "rootfs/etc/inittab": "::sysinit:/bin/hostname -F /etc/hostname\n::ctrlaltdel:/bin/poweroff\n",
    "rootfs/etc/hostname": "busybox\n",
}
# Debian's busybox is built without this one.
CHPASSWD = """\
#!/bin/sh
while IFS=: read -r user password; do
    grep -q "^$user:" /etc/shadow || { echo "chpasswd: no user $user" >&2; exit 1; }
    hash=$(printf %s "$password" | mkpasswd -m sha512 -P 0) || exit 1
    USER=$user HASH=$hash awk -F: -v OFS=: '$1 == ENVIRON["USER"] { $2 = ENVIRON["HASH"] } { print }' \\
        /etc/shadow > /etc/shadow.new && mv /etc/shadow.new /etc/shadow || exit 1
done
"""
DIRECTORIES = ("bin", "dev", "etc", "proc", "root", "run", "sbin", "sys", "tmp", "usr/bin", "usr/sbin", "var")


def build(path: Path, inittab: str = "") -> Path:
    """Write the image.

    :param inittab: further lines of /etc/inittab
    :raises FileNotFoundError: no static busybox on this machine
    """
    with opened(path) as image:
        for name, text in FILES.items():
            add_file(image, name, text + inittab if name == "rootfs/etc/inittab" else text)
        add_busybox(image)
    return path


@contextlib.contextmanager
def opened(path: Path) -> Iterator[tarfile.TarFile]:
    """Open a new image that has its metadata and its directories."""
    with tarfile.open(path, "w:gz", compresslevel=1) as image:
        add_file(image, "metadata.yaml", metadata())
        for directory in DIRECTORIES:
            add(image, f"rootfs/{directory}", tarfile.DIRTYPE, 0o755)
        yield image


def add_busybox(image: tarfile.TarFile) -> None:
    """busybox under each of its names.

    :raises FileNotFoundError: no static busybox on this machine
    """
    busybox = shutil.which("busybox")
    if busybox is None:
        raise FileNotFoundError("No busybox on this machine. Run: sudo tools/install demo")
    applets = subprocess.run((busybox, "--list-full"), capture_output=True, text=True, check=True).stdout.split()
    image.add(busybox, "rootfs/bin/busybox", filter=owned_by_root)
    for applet in applets:
        if applet != "bin/busybox":
            add(image, f"rootfs/{applet}", tarfile.SYMTYPE, 0o777, "/bin/busybox")
    add_file(image, "rootfs/usr/sbin/chpasswd", CHPASSWD, 0o755)


def metadata() -> str:
    return (f"architecture: {platform.machine()}\ncreation_date: {int(time.time())}\n"
            "properties:\n  os: busybox\n  description: busybox, for trying things out\n")


def add(image: tarfile.TarFile, name: str, kind: bytes, mode: int, target: str = "") -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.linkname, entry.mtime = kind, mode, target, int(time.time())
    image.addfile(entry)


def add_file(image: tarfile.TarFile, name: str, content: str | bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    data = content.encode() if isinstance(content, str) else content
    entry.size, entry.mode, entry.mtime = len(data), mode, int(time.time())
    image.addfile(entry, io.BytesIO(data))


def owned_by_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry


if __name__ == "__main__":
    build(Path(sys.argv[1]))
