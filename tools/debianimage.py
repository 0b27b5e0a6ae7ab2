# SPDX-License-Identifier: Apache-2.0
"""Images of containers for LXD and for Docker: Debian's packages and some files of the project's own.

The packages are fetched and unpacked once for each list of them, and an image is written anew only if what it is made
of has changed.
"""

import fnmatch
import hashlib
import re
import subprocess
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple, cast

from tools import debian
from tools.cloud import image

Say = Callable[[str], None]


class File(NamedTuple):
    content: bytes
    mode: int = 0o644


class DebianImage:
    """Each container makes its devices and keys itself, so none are in the image.

    :param cache: directory of what is made, and kept
    :param files: path below the root -> what lies there, also in the place of a package's file
    :param links: path below the root -> where it leads to
    :param left_out: patterns (:mod:`fnmatch`) of files of the packages that the image does without;
        a file with several names must be left out under all of them
    """

    def __init__(self, cache: Path, packages: Sequence[str], files: Mapping[str, File], links: Mapping[str, str],
                 left_out: Sequence[str] = ()) -> None:
        self._cache, self._packages, self._files, self._links = cache, packages, files, links
        self._left_out = ("dev/*", "etc/ssh/ssh_host_*", *left_out)

    def unified(self, say: Say) -> Path:
        """Return an image of LXD's: metadata.yaml and rootfs/ in one tar, packed with zstd."""
        def write(tar: tarfile.TarFile) -> None:
            image.add_file(tar, "metadata.yaml", image.metadata())
            self._write(tar, "rootfs/", say)

        return self._kept("image.tar.zst", write)

    def plain(self, say: Say) -> Path:
        """Return the root file system as a tar packed with zstd, as ``docker import`` takes it."""
        return self._kept("root.tar.zst", lambda tar: self._write(tar, "", say))

    def packages(self, say: Say) -> Path:
        """Return a tar with the packages alone, made once for each list of them."""
        path = self._cache / f"packages-{hashlib.sha256(' '.join(self._packages).encode()).hexdigest()[:8]}.tar"
        if not path.exists():
            say("First run: fetching and unpacking the image's Debian packages (kept for later runs)")
            self._cache.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_name("unfinished.tar")
            debian.debootstrap(unfinished, debian.release(), debian.sources(), self._packages)
            unfinished.rename(path)
        return path

    def _kept(self, name: str, write: Callable[[tarfile.TarFile], None]) -> Path:
        """Return a packed tar, which is written anew if what it is made of has changed."""
        path, note = self._cache / name, self._cache / f"{name}.for"
        wanted = self._wanted()
        if not (path.exists() and note.exists() and note.read_text() == wanted):
            self._cache.mkdir(parents=True, exist_ok=True)
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

    def _write(self, tar: tarfile.TarFile, prefix: str, say: Say) -> None:
        own = {"", ".", *self._files, *self._links}
        left_out = re.compile("|".join(map(fnmatch.translate, self._left_out)))
        with tarfile.open(self.packages(say)) as source:
            for entry in source:
                name = entry.name.removeprefix("./")
                if name in own or left_out.match(name):
                    continue
                content = source.extractfile(entry) if entry.isreg() else None
                entry.name = prefix + name
                for header in ("path", "linkpath"):  # those of long names, which would go before the new ones
                    entry.pax_headers.pop(header, None)
                if entry.islnk():
                    entry.linkname = prefix + entry.linkname.removeprefix("./")
                tar.addfile(entry, content)
        for path, (content, mode) in sorted(self._files.items()):
            image.add_file(tar, prefix + path, content, mode)
        for path, target in self._links.items():
            image.add(tar, prefix + path, tarfile.SYMTYPE, 0o777, target)

    def _wanted(self) -> str:
        parts = (self._packages, sorted(self._files.items()), sorted(self._links.items()), self._left_out,
                 Path(__file__).read_bytes())
        return hashlib.sha256(repr(parts).encode()).hexdigest()


def below(directory: Path) -> dict[str, File]:
    """Return the files of a directory, those of init.d as programs."""
    return {str(file.relative_to(directory)): File(file.read_bytes(), 0o755 if file.parent.name == "init.d" else 0o644)
            for file in directory.rglob("*") if file.is_file()}
