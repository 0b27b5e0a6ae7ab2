# SPDX-License-Identifier: Apache-2.0
"""Capture a host as one JSON document, from which every read-only command gives the same results as on the host.

Only what these commands read is captured. Format: ``entries`` maps each absolute path to
``file`` (its text), ``data`` (its bytes, in Base64), ``link`` (a target) or ``node`` (a device node).
"""

import base64
import binascii
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from containerhost.allocation.store import DIRECTORY, Allocation
from containerhost.devices import rdmaports
from containerhost.devices.health import kernellog
from containerhost.errors import SpecError
from containerhost.inventory import freedevices, sharing, taints, topology
from containerhost.linux.sysfs import ATTRIBUTE_LIMIT, Host
from containerhost.operator import doctor
from containerhost.operator.drawing.hostreader import read_map
from containerhost.operator.reports import rdmareport

VERSION = 1
LARGEST = 64 << 20  # bytes of a document
PATH = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[^/\0]{1,255}){1,64}")
OF_DEVICE = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}", re.ASCII)  # the prefix of messages about a PCI function

# Identifiers of the machine: replaced by numbers of equal length, the same one for the same text.
IDENTITY = re.compile(
    r"(?<![0-9a-zA-Z:])(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"  # UUID
    r"|(?:[0-9a-f]{2}:){5}(?:(?:[0-9a-f]{2}:){14})?[0-9a-f]{2}"  # hardware address: Ethernet, InfiniBand
    r"|(?:[0-9a-f]{4}:){3}(?:(?:[0-9a-f]{4}:){4})?[0-9a-f]{4})(?![0-9a-zA-Z:-])",  # GUID, GID
    re.IGNORECASE | re.ASCII)
DIGITS = re.compile(r"[0-9a-f]", re.IGNORECASE)
SERIAL = re.compile(r"/[a-z_]*(?:serial|uuid|unique_id)[a-z_]*$")  # attributes of DMI and of functions
HEXADECIMAL = re.compile(r"[0-9a-f]{8,64}", re.IGNORECASE | re.ASCII)
ROOT_DEVICE = re.compile(r"\b(root|resume)=\S+")  # parameters of /proc/cmdline

Entry = Mapping[str, str]


class Recorder(Host):
    """Read a host like a captured one, and record what was read.

    :ivar entries: by path without symbolic links
    """

    def __init__(self, root: Path | str = "/") -> None:
        super().__init__(root)
        self.live = False
        self.entries: dict[str, Entry] = {}
        self._directories: dict[str, str] = {}

    def data(self, path: str, limit: int = ATTRIBUTE_LIMIT) -> bytes | None:
        found = self._messages() if path == kernellog.PATH else super().data(path, limit)
        if found is not None:
            self.entries[self._place(path)] = content(found)
        return found

    def _messages(self) -> bytes | None:
        fd = self.open(kernellog.PATH)
        if fd is None:
            return None
        try:
            lines = b"".join(kernellog.pieces(fd)).splitlines(keepends=True)
        finally:
            os.close(fd)
        return b"".join(line for line in lines if OF_DEVICE.search(line.decode("utf-8", "replace")))

    def names(self, path: str) -> tuple[str, ...]:
        found = super().names(path)
        for name in found:
            self._kept(f"{path}/{name}")
        return found

    def exists(self, path: str) -> bool:
        self._kept(path)
        return super().exists(path)

    def is_directory(self, path: str) -> bool:
        self._kept(path)
        return super().is_directory(path)

    def target(self, path: str) -> str | None:
        self._kept(path)
        return super().target(path)

    def node_fault(self, path: str, major: int, minor: int) -> str | None:
        self._kept(path)
        return super().node_fault(path, major, minor)

    def _kept(self, path: str) -> None:
        """Record that a path exists, and its type."""
        place = self._place(path)
        if place in self.entries:
            return
        try:
            status = os.lstat(self._prefix + place)
        except (OSError, ValueError):
            return
        if stat.S_ISLNK(status.st_mode):
            self.entries[place] = {"link": relative(os.readlink(self._prefix + place), place)}
        elif stat.S_ISCHR(status.st_mode):
            self.entries[place] = {"node": f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"}
        else:
            self.entries[place] = {"directory": ""} if stat.S_ISDIR(status.st_mode) else {"file": ""}

    def _place(self, path: str) -> str:
        """Return a path resolved except for its last component, and record the links on it."""
        directory, _, name = path.rstrip("/").rpartition("/")
        return f"{self._resolved(directory)}/{name}"

    def _resolved(self, directory: str) -> str:
        if not directory:
            return ""
        if directory not in self._directories:
            place = self._place(directory)
            try:
                link: str | None = os.readlink(self._prefix + place)
            except (OSError, ValueError):
                link = None
            if link is not None:
                self._kept(place)
                place = self._resolved(os.path.normpath(os.path.join(os.path.dirname(place), link)))
            self._directories[directory] = place
        return self._directories[directory]


def content(data: bytes) -> Entry:
    try:
        return {"file": data.decode()}
    except UnicodeDecodeError:
        return {"data": base64.b64encode(data).decode()}


def relative(target: str, place: str) -> str:
    return os.path.relpath(target, os.path.dirname(place)) if target.startswith("/") else target


def capture(root: Path, owners: Path, records: Mapping[str, Allocation], redacted: bool) -> dict[str, Any]:
    """Return the document of a host.

    :param redacted: whether serial numbers, addresses, UUIDs and the root device are replaced
    """
    host = Recorder(root)
    seen = doctor.collect(host, owners)
    doctor.findings(seen)
    read_map(host, records)
    topology.read(host)
    freedevices.candidates(seen.inventory, host, records, None, None)
    rdmareport.rows(seen.inventory, host, records)
    rdmaports.namespace_mode(host)
    entries = dict(host.entries)
    files = {taints.FILE: Path(root, taints.FILE[1:]), sharing.FILE: Path(root, sharing.FILE[1:])}
    files |= {f"{DIRECTORY}/{path.name}": path for path in sorted(owners.glob("*.json"))}
    entries |= {name: content(path.read_bytes()) for name, path in files.items() if path.is_file()}
    if redacted:
        hide = redaction()
        entries = {path: {kind: hide(path, text) if kind == "file" else text for kind, text in entry.items()}
                   for path, entry in entries.items()}
    return {"version": VERSION, "entries": dict(sorted(entries.items()))}


def redaction() -> Callable[[str, str], str]:
    """Return a function that removes the machine's identifiers from the text of a path."""
    known: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        text = match[0].lower()
        if len(set(DIGITS.findall(text))) == 1:  # all zeros, a broadcast address
            return match[0]
        if text not in known:
            count = len(DIGITS.findall(text))
            digits: Iterator[str] = iter(f"{len(known) + 1:0{count}x}")
            known[text] = DIGITS.sub(lambda _: next(digits), text)
        return known[text]

    def hide(path: str, text: str) -> str:
        if SERIAL.search(path) and not IDENTITY.search(text):
            return HEXADECIMAL.sub(number, text) if HEXADECIMAL.fullmatch(text.strip()) else "redacted\n"
        if path == "/proc/cmdline":
            text = ROOT_DEVICE.sub(r"\1=redacted", text)
        return IDENTITY.sub(number, text)

    return hide


def restore(file: Path, directory: Path) -> None:
    """Write the tree of an untrusted document into an empty directory, refusing paths and links that lead out.

    :raises SpecError: it is not such a document
    """
    try:
        if file.stat().st_size > LARGEST:
            raise ValueError(f"it is larger than {LARGEST >> 20} MiB")
        document = json.loads(file.read_bytes())
        document = document.get("host", document)  # as in the results of a self-test
        if document["version"] != VERSION:
            raise ValueError(f"its version is {document['version']!r}, and this release reads {VERSION}")
        directories = {"/"}
        for path, entry in document["entries"].items():
            _make_parents(directory, path, directories)
            _write(directory / path[1:], path, entry)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, binascii.Error) as error:
        raise SpecError(f"{file} is not a captured host from `containerhost dump`: {error}") from error


def _make_parents(directory: Path, path: str, made: set[str]) -> None:
    """Create the directories above a path of a document; ``made`` has those that are not links."""
    if not PATH.fullmatch(path):
        raise ValueError(f"{path[:100]!r} is not a path")
    for parent in reversed(PurePosixPath(path).parents):
        if str(parent) not in made:
            place = directory / str(parent)[1:]
            place.mkdir(exist_ok=True)
            if place.is_symlink():
                raise ValueError(f"{path} is below a link")
            made.add(str(parent))


def _write(place: Path, path: str, entry: Entry) -> None:
    ((kind, text),) = entry.items()
    match kind:
        case "file":
            place.write_text(text, encoding="utf-8")
        case "data":
            place.write_bytes(base64.b64decode(text, validate=True))
        case "node":
            place.touch()
        case "directory":
            place.mkdir(exist_ok=True)
        case "link":
            _require_inside(path, text)
            place.symlink_to(text)
        case _:
            raise ValueError(f"{path} is {kind[:40]!r}")


def _require_inside(path: str, target: str) -> None:
    """Refuse a link that could lead out of the tree.

    Its directory is not a link, so leading ``..`` are safe; after a name, which may be another link, a ``..`` could
    lead anywhere."""
    names = target.split("/")
    ups = next((index for index, name in enumerate(names) if name != ".."), len(names))
    if ups > len(PurePosixPath(path).parts) - 2 or {"", ".", ".."} & set(names[ups:]) or "\0" in target:
        raise ValueError(f"{path} is a link that may lead elsewhere: {target[:100]!r}")
