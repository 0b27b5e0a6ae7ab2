# SPDX-License-Identifier: Apache-2.0
"""Read an image as OpenNebula describes it to a datastore's driver, typed. Pure."""

from typing import TYPE_CHECKING, NamedTuple

from onedriver.errors import BadInput
from onedriver.section import Section

if TYPE_CHECKING:
    from onedriver.document import Element


class Image(NamedTuple):
    """Describe the image that a datastore action is about.

    :ivar type: OS, CDROM, DATABLOCK…; None where the core does not tell, as to ``stat``
    :ivar file_system: that data is to have
    :ivar size: MiB
    :ivar snapshot: which of its snapshots the action is about
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
