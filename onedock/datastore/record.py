# SPDX-License-Identifier: Apache-2.0
"""Write the file that represents an image's disk in a datastore, a small JSON document, which ``SOURCE`` names."""

import dataclasses
import json
from pathlib import Path
from typing import Self

from onedock.datastore.digests import DIGEST
from onedriver.errors import BadInput

LIMIT = 64 << 10  # bytes


@dataclasses.dataclass(frozen=True)
class Record:
    """Identify an image of a datastore, and whether its layers are there or in a registry.

    :ivar image: the engine's id of the image
    :ivar reference: its origin; pinned to a digest for a registry
    :ivar directory: of its layers, a name in the datastore; None if nodes fetch it from its registry
    :ivar credentials: file with those of that registry; None for none
    """

    image: str
    reference: str
    directory: str | None = None
    credentials: str | None = None

    def text(self) -> str:
        return json.dumps({key: value for key, value in dataclasses.asdict(self).items() if value is not None}) + "\n"

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read a record; raise BadInput if it is missing or invalid."""
        try:
            with file.open("rb") as record:
                found = cls(**json.loads(record.read(LIMIT)))
        except OSError as error:
            raise BadInput(f"the image {file} cannot be read: {error.strerror}") from error
        except (ValueError, TypeError, RecursionError) as error:
            raise BadInput(f"the image {file} is damaged: register it again") from error
        if not isinstance(found.image, str) or not DIGEST.fullmatch(found.image):
            raise BadInput(f"the image {file} is damaged: register it again")
        return found
