# SPDX-License-Identifier: Apache-2.0
"""A Debian with Open MPI, sshd and cloud-init, for LXD and for Docker. It starts the quick way: busybox is its init.

Its root file system is made once and kept; what is in ``files/`` lies there under the same names.
"""

import hashlib
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, cast

from tools import debian
from tools.cloud import image
from tools.cloud.layout import CHECKOUT

CACHE = CHECKOUT / ".cache" / "mpi"
FILES = Path(__file__).parent / "files"
PROGRAM = CHECKOUT / "examples" / "mpi" / "ranks.py"
PACKAGES = ("busybox-static", "cloud-init", "ifupdown", "iproute2", "openmpi-bin", "openssh-server", "python3-mpi4py")
# Every engine has devices of its own, and each container makes keys of its own.
LEFT_OUT = ("dev/", "etc/ssh/ssh_host_")
INIT = "/sbin/init"


def unified(say: Callable[[str], None]) -> Path:
    """Return an image of LXD's: metadata.yaml and rootfs/ in one tar, packed with zstd."""
    def write(tar: tarfile.TarFile) -> None:
        image.add_file(tar, "metadata.yaml", image.metadata())
        _write(tar, "rootfs/", say)

    return _kept("image.tar.zst", write)


def plain(say: Callable[[str], None]) -> Path:
    """Return the root file system as a tar packed with zstd, as ``docker import`` takes it."""
    return _kept("root.tar.zst", lambda tar: _write(tar, "", say))


def _kept(name: str, write: Callable[[tarfile.TarFile], None]) -> Path:
    """Return a packed tar, which is written anew if what it is made of has changed."""
    path, note = CACHE / name, CACHE / f"{name}.for"
    wanted = _wanted()
    if not (note.exists() and note.read_text() == wanted):
        CACHE.mkdir(parents=True, exist_ok=True)
        note.unlink(missing_ok=True)
        command = ("zstd", "-q", "-3", "-T0", "--force", "-o", str(path))
        with subprocess.Popen(command, stdin=subprocess.PIPE) as packer:
            with tarfile.open(fileobj=packer.stdin, mode="w|") as tar:
                write(tar)
            cast(IO[bytes], packer.stdin).close()
        if packer.returncode:
            raise debian.Failed(f"zstd ended with status {packer.returncode}")
        note.write_text(wanted)
    return path


def _write(tar: tarfile.TarFile, prefix: str, say: Callable[[str], None]) -> None:
    own = {str(file.relative_to(FILES)) for file in FILES.rglob("*") if file.is_file()}
    with tarfile.open(packages(say)) as source:
        for entry in source:
            name = entry.name.removeprefix("./")
            if name in ("", ".", *own) or name.startswith(LEFT_OUT):
                continue
            content = source.extractfile(entry) if entry.isfile() else None
            entry.name = prefix + name
            if entry.islnk():
                entry.linkname = prefix + entry.linkname.removeprefix("./")
            tar.addfile(entry, content)
    for file in sorted(FILES.rglob("*")):
        if file.is_file():
            inside = file.relative_to(FILES)
            mode = 0o755 if inside.parent.name == "init.d" else 0o644
            image.add_file(tar, f"{prefix}{inside}", file.read_text(), mode)
    image.add_file(tar, f"{prefix}usr/local/bin/ranks", PROGRAM.read_text(), 0o755)
    image.add(tar, f"{prefix}usr/sbin/init", tarfile.SYMTYPE, 0o777, "/bin/busybox")


def packages(say: Callable[[str], None]) -> Path:
    """Return a tar with the packages alone, made once for each list of them."""
    path = CACHE / f"packages-{hashlib.sha256(' '.join(PACKAGES).encode()).hexdigest()[:8]}.tar"
    if not path.exists():
        say("First run: fetching and unpacking the image's Debian packages (kept for later runs)")
        CACHE.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name("unfinished.tar")
        debian.debootstrap(unfinished, debian.release(), debian.sources(), PACKAGES)
        unfinished.rename(path)
    return path


def _wanted() -> str:
    parts = [" ".join(PACKAGES).encode(), Path(__file__).read_bytes(), PROGRAM.read_bytes(),
             *(file.read_bytes() for file in sorted(FILES.rglob("*")) if file.is_file())]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()
