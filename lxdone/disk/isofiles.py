# SPDX-License-Identifier: Apache-2.0
"""Extract the files of an ISO image into a directory.

An ISO image may come from a tenant, and may be an archive of another format of ``bsdtar``, one of which is a list of
files of the host. So it is unpacked by an unprivileged user in a root with only programs and libraries, and only
regular files, directories and links of the output are created: links last, so that no file is written through one,
and each in a real directory, so that no link is either. An image that would unpack to more than its own size is
refused, because it may refer to the same content many times.
"""

import contextlib
import io
import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, cast

from containerhost.linux.files import Directory
from containerhost.linux.run import confined
from lxdone.disk import filesystems
from onedriver.errors import DriverError, NotSupported
from onedriver.node.programs import beside

MESSAGES = 1 << 20  # bytes of a file that it may write, for its error messages
ENTRIES = 100_000  # maximum number of files and directories of an image
# Arguments: a directory to become the root in a new mount namespace, then the command to run there.
ALONE = """
set -e
root=$1
shift
mount -t tmpfs -o mode=755,size=64k tmpfs "$root"
for directory in /usr/bin /usr/lib /usr/lib64 /lib /lib64; do
    [ -d "$directory" ] || continue
    mkdir -p "$root$directory"
    mount --bind "$directory" "$root$directory"
done
exec chroot --userspec=65534:65534 --groups= "$root" "$@"
"""
DEPTH = 64  # depth of directories; shutil.rmtree is recursive, and Python's limit is 1000


def extract(iso: Path, directory: Path, timeout: int) -> None:
    """Extract the image, world-readable and writable only by root.

    :param directory: created; an existing one is replaced
    :param timeout: seconds it may take
    :raises DriverError: it cannot be read
    """
    links: list[tuple[Path, str]] = []
    number = 0
    try:
        room = filesystems.length(iso)
        if directory.exists():
            shutil.rmtree(directory)
        directory.mkdir(mode=0o755, parents=True)
        with members(iso, directory, timeout) as archive:
            for member in archive:
                cast(Any, archive).members.clear()  # frees their headers
                place = inside(directory, member.name)
                room -= member.size
                number += 1 + sum(not (directory / above).exists() for above in place.relative_to(directory).parents)
                if room < 0 or number > ENTRIES:
                    raise NotSupported(f"disk {iso} is an ISO image that would unpack to more than its own size, or to "
                                       f"more than {ENTRIES} files and directories")
                make(archive, member, place, links, directory)
        if not number:
            raise DriverError(f"disk {iso} cannot be read: it has no file, or is damaged")
        for place, target in links:
            link(directory, place, target)
    except (tarfile.TarError, OSError) as error:
        raise DriverError(f"disk {iso} cannot be unpacked: {error}") from error


def make(archive: tarfile.TarFile, member: tarfile.TarInfo, place: Path, links: list[tuple[Path, str]],
         directory: Path) -> None:
    if member.isdir():
        place.mkdir(mode=0o755, parents=True, exist_ok=True)
    elif member.issym() and place != directory:
        links.append((place, member.linkname))
    elif member.islnk():  # repeats the content
        place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        os.link(inside(directory, member.linkname), place, follow_symlinks=False)
    elif member.isfile():
        place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with archive.extractfile(member) or io.BytesIO() as source, place.open("xb") as target:
            shutil.copyfileobj(source, target)
        place.chmod(0o755 if member.mode & 0o111 else 0o644)


def link(directory: Path, place: Path, target: str) -> None:
    """Create a symbolic link without following another, or raise OSError; a duplicate name is skipped."""
    with contextlib.ExitStack() as stack:
        parent = stack.enter_context(Directory(directory))
        if place.parent != directory:
            parent = stack.enter_context(parent.child(*place.parent.relative_to(directory).parts))
        with contextlib.suppress(FileExistsError):
            os.symlink(target, place.name, dir_fd=parent.fd)


def inside(directory: Path, name: str) -> Path:
    """Return the path of a member below the directory; raise NotSupported if it is outside, or too deep."""
    path = PurePosixPath(name)
    if len(path.parts) > DEPTH:
        raise NotSupported(f"the ISO image has a file more than {DEPTH} directories deep: {name[:100]!r}…")
    if path.is_absolute() or ".." in path.parts:
        raise NotSupported(f"the ISO image has a file named {name[:100]!r}, which would be outside of it")
    return directory / path


def alone(directory: Path, timeout: int, *command: str) -> list[str]:
    """Return the prefix for a command to run it as nobody, with limits, seeing only programs and libraries."""
    return ["unshare", "--mount", "--propagation=private", "sh", "-c", ALONE, "sh", str(directory),
            *confined(timeout, written=MESSAGES), *command]


@contextlib.contextmanager
def members(iso: Path, directory: Path, timeout: int) -> Iterator[tarfile.TarFile]:
    """Yield the image's content as a tar stream, read once."""
    if shutil.which("bsdtar") is None:
        raise NotSupported(f"disk {iso} is an ISO image, but this node has no bsdtar to read it with: install "
                           "libarchive-tools")
    command = alone(directory, timeout, "bsdtar", "--create", "--format=pax", "--file=-", "@-")
    out, end = os.pipe()
    with iso.open("rb") as source, open(out, "rb") as stream, beside(
            command, timeout, f"disk {iso} cannot be read", stdin=source, stdout=end, cwd="/",
            env={"LANG": "C.UTF-8", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}):
        os.close(end)
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            yield archive
        while stream.read(1 << 16):
            pass
