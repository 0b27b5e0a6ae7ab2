# SPDX-License-Identifier: Apache-2.0
"""Read OpenNebula's description of an image for a datastore driver as typed values. Pure."""

from typing import TYPE_CHECKING, NamedTuple

from onedriver.errors import BadInput
from onedriver.section import Section

if TYPE_CHECKING:
    from onedriver.document import Element


class Image(NamedTuple):
    """Describe the image of a datastore action.

    :ivar type: OS, CDROM, DATABLOCK…; None if the core does not pass it, as for ``stat``
    :ivar file_system: of a data image
    :ivar size: MiB
    :ivar snapshot: the snapshot of the action
    """

    path: str | None
    source: str | None
    format: str | None
    size: int | None
    type: str | None = None
    file_system: str | None = None
    snapshot: int | None = None


#: OpenNebula's Image.h.
TYPES = {0: "OS", 1: "CDROM", 2: "DATABLOCK", 3: "KERNEL", 4: "RAMDISK", 5: "CONTEXT", 6: "BACKUP", 7: "FILESYSTEM"}


def described(element: "Element") -> Image:
    top = Section(element, "IMAGE")
    kind, snapshot = top.integer("TYPE"), top.integer("TARGET_SNAPSHOT", -1)
    if kind is not None and kind not in TYPES:
        raise BadInput(f"IMAGE: TYPE is {kind}, but must be one of {', '.join(map(str, TYPES))}")
    return Image(top.text("PATH"), top.text("SOURCE"), top.text("FORMAT"), top.integer("SIZE"),
                 None if kind is None else TYPES[kind], top.text("FS"), None if snapshot == -1 else snapshot)
