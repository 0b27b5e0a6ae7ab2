# SPDX-License-Identifier: Apache-2.0
"""Read datastores and images as OpenNebula describes them to a driver, typed. Pure."""

from typing import TYPE_CHECKING, NamedTuple

from onedriver.errors import BadInput
from onedriver.section import Section

if TYPE_CHECKING:
    from onedriver.document import Element

MIB = 1 << 20


class Datastore(NamedTuple):
    """Describe a datastore as oned passes it to a driver: its type, drivers, directory and limits.

    :ivar type: IMAGE, SYSTEM, FILE or BACKUP
    :ivar safe_directories: from which images may be taken
    :ivar limit: bytes it may use at most; None is the whole file system
    """

    id: int
    name: str
    type: str
    ds_mad: str | None
    tm_mad: str | None
    base_path: str
    safe_directories: tuple[str, ...]
    limit: int | None


class Image(NamedTuple):
    """Describe the image that a datastore action is about.

    :ivar type: OS, CDROM, DATABLOCK…; None where the core does not tell, as to ``stat``
    :ivar file_system: that data is to have
    :ivar size: bytes
    :ivar snapshot: which of its snapshots the action is about
    """

    id: int
    path: str | None
    source: str | None
    format: str | None
    size: int | None
    type: str | None = None
    file_system: str | None = None
    snapshot: int | None = None


#: OpenNebula's Image.h.
IMAGE_TYPES = {0: "OS", 1: "CDROM", 2: "DATABLOCK", 3: "KERNEL", 4: "RAMDISK", 5: "CONTEXT", 6: "BACKUP",
               7: "FILESYSTEM"}
TYPES = {0: "IMAGE", 1: "SYSTEM", 2: "FILE", 3: "BACKUP"}


def datastore(element: "Element") -> Datastore:
    top = Section(element, "DATASTORE")
    template = top.section("TEMPLATE")
    kind = top.number("TYPE")
    if kind not in TYPES:
        raise BadInput(f"DATASTORE: TYPE is {kind}, but must be one of {', '.join(map(str, TYPES))}")
    limit = template.integer("LIMIT_MB") if template else None
    return Datastore(
        id=top.number("ID"), name=top.text("NAME") or "", type=TYPES[kind], ds_mad=top.text("DS_MAD"),
        tm_mad=top.text("TM_MAD"), base_path=top.required("BASE_PATH"),
        safe_directories=tuple((template.text("SAFE_DIRS") or "").split()) if template else (),
        limit=None if limit is None else limit * MIB)


def image(element: "Element") -> Image:
    top = Section(element, "IMAGE")
    size, kind, snapshot = top.integer("SIZE"), top.integer("TYPE"), top.integer("TARGET_SNAPSHOT", -1)
    if kind is not None and kind not in IMAGE_TYPES:
        raise BadInput(f"IMAGE: TYPE is {kind}, but must be one of {', '.join(map(str, IMAGE_TYPES))}")
    return Image(top.integer("ID") or 0, top.text("PATH"), top.text("SOURCE"), top.text("FORMAT"),
                 None if size is None else size * MIB, None if kind is None else IMAGE_TYPES[kind],
                 top.text("FS"), None if snapshot == -1 else snapshot)
