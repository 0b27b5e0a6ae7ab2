# SPDX-License-Identifier: Apache-2.0
"""Images that a hostile tenant would upload, as uncompressed tarballs. Needs the standard library only."""

import io
import platform
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

DATES = f"architecture: {platform.machine()}\ncreation_date: {{}}\n"
METADATA = DATES.format(1)
FAR = 999_999_999_999_999  # s: the year 31690708


class Builder:
    """A unified image with a busybox root, and what is wrong with it."""

    def __init__(self, good: Path) -> None:
        """:param good: a unified image"""
        self._good = good
        self._raw = io.BytesIO()
        self.tar = tarfile.open(fileobj=self._raw, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115

    def add(self, name: str, kind: bytes = tarfile.REGTYPE, link: str = "", text: str = "",
            headers: Mapping[str, str] | None = None) -> "Builder":
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname, entry.size, entry.mode = kind, link, len(text.encode()), 0o755
        entry.devmajor, entry.devminor = (1, 3) if kind == tarfile.CHRTYPE else (0, 0)
        entry.pax_headers = dict(headers or {})
        self.tar.addfile(entry, io.BytesIO(text.encode()))
        return self

    def metadata(self, text: str = METADATA) -> "Builder":
        return self.add("metadata.yaml", text=text)

    def root(self) -> "Builder":
        with tarfile.open(self._good) as archive:
            for entry in archive:
                if entry.name.startswith("rootfs/"):
                    self.tar.addfile(entry, archive.extractfile(entry) if entry.isfile() else None)
        return self

    def raw(self, block: bytes) -> "Builder":
        """Add bytes as they are."""
        self._raw.write(block)
        self.tar.offset += len(block)
        return self

    def done(self) -> bytes:
        self.tar.close()
        return self._raw.getvalue()


def attacks(good: Path, victim: Path) -> Iterator[tuple[str, bytes]]:
    """Yield names of attacks, and images that try each.

    :param victim: a file of the host, which none may read or write
    """
    for name, build in ATTACKS.items():
        yield name, build(Builder(good), str(victim)).done()


def hidden_name(builder: Builder, victim: str) -> Builder:
    """A pax header whose comment has a line that looks like another name."""
    builder.metadata()
    comment = "x\n23 path=rootfs/harmless"
    return builder.add("backup.yaml", tarfile.SYMTYPE, victim, headers={"comment": comment}).root()


def templates(builder: Builder, victim: str) -> Builder:
    """Templates that read a host's file into the container, and write through a link of the root."""
    text = METADATA + ("templates:\n"
                       "  /etc/read: {when: [create, copy, start], template: read.tpl}\n"
                       "  /etc/write: {when: [create, copy, start], template: write.tpl}\n")
    return builder.metadata(text).add("templates", tarfile.DIRTYPE).add("templates/read.tpl", tarfile.SYMTYPE, victim) \
        .add("templates/write.tpl", text="written\n").root().add("rootfs/etc/write", tarfile.SYMTYPE, victim)


#: What it is -> builds it, given the victim's path.
ATTACKS: Mapping[str, Callable[[Builder, str], Builder]] = {
    "backup link": lambda b, victim: b.metadata().add("backup.yaml", tarfile.SYMTYPE, victim).root(),
    "backup hard link": lambda b, victim: b.metadata().root().add("backup.yaml", tarfile.LNKTYPE, victim),
    "hidden name": hidden_name,
    "metadata link": lambda b, victim: b.add("metadata.yaml", tarfile.SYMTYPE, victim).root(),
    "metadata replaced by a link": lambda b, victim: b.metadata().root().add("metadata.yaml", tarfile.SYMTYPE, victim),
    "metadata fifo": lambda b, victim: b.metadata().root().add("metadata.yaml", tarfile.FIFOTYPE),
    "templates": templates,
    "templates link": lambda b, victim: b.metadata().add("templates", tarfile.SYMTYPE, str(Path(victim).parent)).root(),
    "rootfs link": lambda b, victim: b.metadata().root().add("rootfs", tarfile.SYMTYPE, str(Path(victim).parent)),
    "file below a link": lambda b, victim: b.metadata().root().add(
        "rootfs/evil", tarfile.SYMTYPE, str(Path(victim).parent)).add(
            f"rootfs/evil/{Path(victim).name}", text="written\n"),
    "hard link to the host": lambda b, victim: b.metadata().root().add("rootfs/evil", tarfile.LNKTYPE, victim),
    "parent": lambda b, victim: b.metadata().root().add(f"rootfs/../../../../../../../..{victim}", text="written\n"),
    "absolute": lambda b, victim: b.metadata().root().add(victim, text="written\n"),
}


def dated(good: Path) -> bytes:
    """Two metadata.yaml: LXD believes the first, whose date makes its record of the image unreadable."""
    return Builder(good).metadata(DATES.format(FAR)).root().metadata().done()


def devices(good: Path) -> bytes:
    return Builder(good).metadata().root().add("rootfs/root/null", tarfile.CHRTYPE).add(
        "rootfs/root/again", tarfile.LNKTYPE, "rootfs/root/null").done()
