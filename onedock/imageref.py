# SPDX-License-Identifier: Apache-2.0
"""Read and write ``disk.0`` of a VM on Docker: the reference to its root's image in the engine, in JSON.

The transfer driver writes it into the VM's directory of the system datastore, and the deployment reads it::

    {"image": "sha256:<64 digits>", "reference": "docker://nginx:1.27", "archive": "disk.0.tar"}

``archive`` is optional: a `docker save` archive in the same directory, to load when the engine does not have the
image. For a VM that leaves its host with its disk, or whose image is persistent, the shutdown writes a new
``disk.0``, which names the image with the VM's data and has the VM's id as ``vm``, and that image as an archive
beside it. Since a live migration it also has, as ``node``, the node where the VM is: see rootowner.py.
"""

import dataclasses
import json
import os
import re
from pathlib import Path

from containerhost.linux.files import replacing
from onedriver.errors import BadInput, DriverError

IMAGE = re.compile(r"sha256:[0-9a-f]{64}")
REFERENCE = re.compile(r"[ -~]{1,500}")
ARCHIVE = re.compile(r"(?!\.)[A-Za-z0-9_.-]{1,100}")
NODE = re.compile(r"[A-Za-z0-9._-]{1,64}")
LIMIT = 16 << 10  # bytes; what is longer is a disk, not a reference


@dataclasses.dataclass(frozen=True)
class ImageRef:
    """Identify the engine's image of a VM's root, and the archive to load it from.

    :ivar image: the engine's id of the image
    :ivar reference: the reference in the tenant's datastore, for messages
    :ivar archive: name of a `docker save` archive in the file's directory
    :ivar vm: the VM from whose container the image was created; None for an image of a datastore
    :ivar node: the only node that may start the VM; None if any may
    :raises BadInput: a field is invalid
    """

    image: str
    reference: str
    archive: str | None = None
    vm: int | None = None
    node: str | None = None

    def __post_init__(self) -> None:
        archive = () if self.archive is None else (("archive", ARCHIVE, self.archive),)
        node = () if self.node is None else (("node", NODE, self.node),)
        for key, pattern, value in (("image", IMAGE, self.image), ("reference", REFERENCE, self.reference), *archive,
                                    *node):
            if not (isinstance(value, str) and pattern.fullmatch(value)):
                raise BadInput(f"{key} is {str(value)[:80]!r}, which is invalid")
        if self.vm is not None and (type(self.vm) is not int or self.vm < 0):
            raise BadInput(f"vm is {str(self.vm)[:80]!r}, which is not a number of a VM")


def read(file: Path) -> ImageRef:
    """Read the reference of a root disk; raise BadInput if the file does not contain one."""
    try:
        with file.open("rb") as disk:
            found = json.loads(disk.read(LIMIT))
        return ImageRef(**found)
    except OSError as error:
        raise BadInput(f"the root disk {file} cannot be read: {error.strerror}") from error
    except BadInput as error:
        raise BadInput(f"the root disk {file}: {error}") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise BadInput(f"the root disk {file} does not name an image of Docker; VMs on Docker take their root from a "
                       "datastore of onedock's") from error


def text(ref: ImageRef) -> str:
    """Return the text for :func:`read`."""
    return json.dumps({key: value for key, value in dataclasses.asdict(ref).items() if value is not None}) + "\n"


def write(file: Path, ref: ImageRef) -> None:
    """Write a reference atomically, keeping the owner.

    Root must not call this in a directory of another user, who could redirect it to any file of the host.

    :raises DriverError: it cannot be written
    """
    try:
        with replacing(file) as new:
            new.write_text(text(ref), encoding="utf-8")
            if file.exists():
                os.chown(new, file.stat().st_uid, file.stat().st_gid)
    except OSError as error:
        raise DriverError(f"the root disk {file} cannot be written: {error.strerror}") from error
