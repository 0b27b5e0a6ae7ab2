# SPDX-License-Identifier: Apache-2.0
"""Decide what each member of an image becomes, so that its new archive fills exactly one root file system.

The new archive contains only the root file system: every name is relative to it, and no member is below a link. An
engine that unpacks it in a directory, with any program, writes nothing outside.
"""

import dataclasses
import enum
from typing import Any, Final

from containerhost.images import metadata
from containerhost.images.errors import BadImage
from containerhost.images.members import Kind, Member, Path, Stream, raw, read
from containerhost.images.writer import Writer


class Format(enum.StrEnum):
    """Name the format in which an image was uploaded.

    ``unified``: metadata.yaml and rootfs/ in one tarball (LXD doc, "Image format"); the others contain only a root.
    """

    UNIFIED = "unified"
    ROOTFS = "rootfs"
    SQUASHFS = "squashfs"


@dataclasses.dataclass(frozen=True)
class Rebuilt:
    """Describe an image that was rebuilt as an archive of its root file system.

    :ivar unpacked: bytes it takes on disk: the length of the new archive before it is packed, which rounds files up
        to 512 bytes and does not count holes. It depends only on the root file system, because an engine has one
        image for several tenants with the same one
    :ivar architecture: as metadata.yaml names it; None if the file lacks it
    """

    format: Format
    unpacked: int
    architecture: str | None = None


METADATA: Final = "metadata.yaml"
ROOTFS: Final = "rootfs"
UNIFIED_TOPS: Final = frozenset({METADATA, ROOTFS, "templates"})
ROOT_DIRECTORIES: Final = frozenset({"bin", "sbin", "usr"})
UNIFIED_ROOTS: Final = frozenset(f"{ROOTFS}/{directory}" for directory in ROOT_DIRECTORIES)
DOCKER_MARKS: Final = frozenset({"oci-layout", "manifest.json"})
KNOWN_TOPS: Final = ROOT_DIRECTORIES | UNIFIED_ROOTS | DOCKER_MARKS | {METADATA, ROOTFS}
LOGINS: Final = frozenset({("lastlog",), ("faillog",), ("tallylog",)})  # in /var/log: lastlog(8), faillog(5)
TREE_LIMIT: Final = 256 << 20  # bytes; total length of the paths of all members, including repeated ones

# Content of a path: a directory, a file of a kind, or a symbolic link with its target.
Known = dict[bytes, Any] | Kind | bytes


class Tree:
    """Track written members, so that none is put below a link or over another member.

    The time for a member depends on its own path, and the paths of all members together have a limit."""

    def __init__(self) -> None:
        self._top: dict[bytes, Known] = {}
        self._left = TREE_LIMIT

    def place(self, member: Member) -> Member | None:
        """Return the member to write for a member; None for none.

        Device nodes are left out: a container may use only nodes that the engine made, and on the host's file system
        they would work.

        :raises BadImage: it is below something that is not a directory, or something else has its path
        """
        self._left -= sum(len(part) + 1 for path in (member.path, member.target) for part in path)
        if self._left < 0:
            raise BadImage(f"the paths of its members take more than {TREE_LIMIT} bytes")
        if not member.path:
            if member.kind is not Kind.DIRECTORY:
                raise BadImage("its root is not a directory")
            return member
        directory, name = self._directory_of(member), raw(member.path[-1])
        before = directory.get(name)
        if before is not None and not (isinstance(before, dict) and member.kind is Kind.DIRECTORY):
            raise BadImage(f"it has {shown(member.path)} twice")
        known, placed = self._known(member)
        directory.setdefault(name, known)
        return placed

    def _directory_of(self, member: Member) -> dict[bytes, Known]:
        directory = self._top
        for depth, part in enumerate(member.path[:-1]):
            found = directory.setdefault(raw(part), {})
            if not isinstance(found, dict):
                raise BadImage(f"its member {shown(member.path)} lies below {shown(member.path[:depth + 1])}, which is "
                               "not a directory")
            directory = found
        return directory

    def _known(self, member: Member) -> tuple[Known, Member | None]:
        """Return the entry at the member's path, and the member to write for it."""
        match member.kind:
            case Kind.DIRECTORY:
                return {}, member
            case Kind.SYMLINK:
                return raw(member.link), member
            case Kind.HARD_LINK:
                return self._hard_link(member)
            case Kind.DEVICE:
                return member.kind, None
        return member.kind, member

    def _hard_link(self, member: Member) -> tuple[Known, Member | None]:
        target: Known | None = self._top
        for part in member.target:
            target = target.get(raw(part)) if isinstance(target, dict) else None
        if target is None or isinstance(target, dict):
            raise BadImage(f"its hard link {shown(member.path)} refers to {shown(member.target)}, which is not an "
                           "earlier file")
        if isinstance(target, bytes):
            # Archivers write the second name of a symbolic link as a hard link; the kernel's choice of what to link
            # does not matter.
            return target, dataclasses.replace(member, kind=Kind.SYMLINK, target=(),
                                               link=target.decode("utf-8", "surrogateescape"))
        return target, None if target is Kind.DEVICE else member


class Rebuild:
    """Rebuild one image from a tar stream."""

    def __init__(self, stream: Stream, target: Writer, *, squashed: bool) -> None:
        self._stream = stream
        self._target = target
        self._squashed = squashed
        self._tree = Tree()
        self._tops: set[str] = set()
        self._unified: bool | None = None
        self._metadata: bytes | None = None

    def run(self) -> Rebuilt:
        """Rebuild the image.

        :raises BadImage: it is damaged, hostile, or not bootable as a container
        """
        for member in read(self._stream, without_logins):
            inside = self._inside(member)
            placed = None if inside is None else self._tree.place(inside)
            if placed is not None:
                self._target.add(placed, self._data)
        self._stream.drain()
        self._target.end()
        form = self._format()
        named = metadata.architecture(self._metadata or b"") if form is Format.UNIFIED else None
        return Rebuilt(form, self._target.written, named)

    def _data(self, size: int) -> bytes:
        return self._stream.exactly(size, "in a member's data")

    def _inside(self, member: Member) -> Member | None:
        """Return the member with its path in the root file system; None if it is outside."""
        path = member.path
        if path:
            self._tops |= {path[0], "/".join(path[:2])} & KNOWN_TOPS
            if self._unified is None:
                self._unified = path[0] in UNIFIED_TOPS
        if not self._unified:
            return member
        if path == (METADATA,):
            self._read_metadata(member)
        if not path or path[0] != ROOTFS:
            return None
        if member.kind is Kind.HARD_LINK:
            if member.target[:1] != (ROOTFS,):
                raise BadImage(f"its hard link {shown(path)} is outside of rootfs/")
            member = dataclasses.replace(member, target=member.target[1:])
        return dataclasses.replace(member, path=path[1:])

    def _read_metadata(self, member: Member) -> None:
        if self._metadata is not None:
            raise BadImage("it has metadata.yaml twice")
        if member.kind is not Kind.FILE or member.segments is not None:
            raise BadImage("its metadata.yaml is not a regular file, so it names no architecture")
        # One byte more than allowed, to detect content that is too long.
        self._metadata = self._data(min(member.size, metadata.LARGEST + 1))

    def _format(self) -> Format:
        tops = self._tops
        both = METADATA in tops and ROOTFS in tops
        if both and self._squashed:
            raise BadImage("it is a unified LXD image as squashfs; upload it as a tarball, or only its root file "
                           "system")
        if both and tops & UNIFIED_ROOTS:
            if not self._unified:
                raise BadImage("it is a unified LXD image that begins with something other than metadata.yaml, rootfs "
                               "and templates; create it again with `lxc image export`, or upload only its rootfs")
            return Format.UNIFIED
        if tops & ROOT_DIRECTORIES and not self._unified:
            return Format.SQUASHFS if self._squashed else Format.ROOTFS
        if tops & DOCKER_MARKS:
            raise BadImage("it is a Docker or OCI archive; upload the file system of a container made from it "
                           "('docker export') instead")
        if METADATA in tops:
            raise BadImage("it contains metadata.yaml but no root file system; upload the image's other half")
        raise BadImage("it contains no root file system: neither metadata.yaml with rootfs/, nor any of bin, sbin and "
                       "usr")


def without_logins(member: Member) -> Member:
    """Return a sparse file of logins as an empty one.

    It has an entry for each user id up to the largest that ever logged in: with a directory service, hundreds of GiB
    of mostly holes, which are useless on a new server."""
    path = member.path[1:] if member.path[:1] == (ROOTFS,) else member.path
    return (dataclasses.replace(member, size=0, segments=None)
            if member.segments is not None and path[:2] == ("var", "log") and path[2:] in LOGINS else member)


def shown(path: Path) -> str:
    return repr("/".join(path)[:200])
