# SPDX-License-Identifier: Apache-2.0
"""A guest that one can log in to: busybox with dropbear, DHCP, the key and the name from the metadata service.

Built in a moment from programs of this machine, as a unified LXD tarball. Files of the guest lie in ``files/`` under
the names they have there; those in a ``bin`` directory and the scripts of init are executable.
"""

import subprocess
import tarfile
import tempfile
from pathlib import Path

from tools.cloud import image

FILES = Path(__file__).parent / "files"
# Programs of this machine -> where the guest has them; with every library they are linked to.
PROGRAMS = {"/usr/sbin/dropbear": "usr/sbin/dropbear", "/usr/bin/dropbearkey": "usr/bin/dropbearkey"}
DIRECTORIES = ("etc/dropbear", "etc/init.d", "lib", "lib64", "mnt", "root/.ssh", "var/log")


def build(path: Path) -> Path:
    """Write the image.

    :raises FileNotFoundError: a program is not on this machine
    """
    for program in PROGRAMS:
        if not Path(program).exists():
            raise FileNotFoundError(f"No {program} on this machine. Run: sudo tools/install demo")
    with image.opened(path) as tar:
        for directory in DIRECTORIES:
            image.add(tar, f"rootfs/{directory}", tarfile.DIRTYPE, 0o700 if directory.startswith("root/") else 0o755)
        image.add(tar, "rootfs/var/run", tarfile.SYMTYPE, 0o777, "/run")
        image.add_busybox(tar)
        for source, target in (*PROGRAMS.items(), *((library, library.lstrip("/")) for library in libraries())):
            tar.add(Path(source).resolve(), f"rootfs/{target}", filter=image.owned_by_root)
        for file in sorted(FILES.rglob("*")):
            if file.is_file():
                name = file.relative_to(FILES)
                image.add_file(tar, f"rootfs/{name}", file.read_text(), mode_of(name))
        add_host_key(tar)
    return path


def add_host_key(tar: tarfile.TarFile) -> None:
    """Give all guests of the image one host key.

    A client that tries again while a floating IP moves from one guest to another, as Tempest's does, would refuse the
    second one's."""
    with tempfile.TemporaryDirectory() as directory:
        key = Path(directory) / "key"
        subprocess.run(("dropbearkey", "-t", "ed25519", "-f", str(key)), capture_output=True, check=True)
        tar.add(key, "rootfs/etc/dropbear/dropbear_ed25519_host_key", filter=image.owned_by_root)


def squash(unified: Path, path: Path) -> Path:
    """Write the root file system of an image alone, as squashfs.

    :raises subprocess.CalledProcessError: it cannot be packed
    """
    command = ("mksquashfs", "-", str(path), "-tar", "-quiet", "-no-progress", "-noappend", "-root-mode", "755")
    with tarfile.open(unified) as image, subprocess.Popen(command, stdin=subprocess.PIPE) as packer:
        with tarfile.open(fileobj=packer.stdin, mode="w|") as root:
            for entry in image:
                directory, _, entry.name = entry.name.partition("/")
                if directory == "rootfs" and entry.name:
                    root.addfile(entry, image.extractfile(entry) if entry.isfile() else None)
        if packer.stdin:
            packer.stdin.close()
    if packer.returncode:
        raise subprocess.CalledProcessError(packer.returncode, command)
    return path


def libraries() -> list[str]:
    """Paths of everything that the programs are linked to."""
    told = subprocess.run(("ldd", *PROGRAMS), capture_output=True, text=True, check=True).stdout
    return sorted({word for line in told.splitlines() for word in line.split()
                   if word.startswith("/") and not word.endswith(":")})


def mode_of(name: Path) -> int:
    """:param name: below the guest's root"""
    if name.name == "shadow":
        return 0o600
    return 0o755 if name.parent.name in {"bin", "sbin", "init.d", "udhcpc"} else 0o644
