# SPDX-License-Identifier: Apache-2.0
"""Nova's fixture for Glance forgets what is uploaded to it; this lets it keep that, read in pieces as Glance does."""

from collections.abc import Callable
from typing import Any

from nova import exception

PIECE = 1 << 16


class Uploads:
    """:param glance: nova.tests.fixtures.GlanceFixture
    :ivar at_piece: called with the image's id before each piece is read
    :ivar lost: bytes of each upload that do not arrive
    :ivar largest: bytes of the largest piece that was read at once
    """

    def __init__(self, glance: Any) -> None:
        self._glance = glance
        self._update, self._create = glance.update, glance.create
        self.at_piece: Callable[[str], None] = lambda image_id: None
        self.lost = 0
        self.largest = 0
        glance.update, glance.create = self.update, self.create

    def create(self, context: Any, metadata: dict[str, Any], data: Any = None) -> dict[str, Any]:
        """An image without content is no active one."""
        return self._create(context, {"status": "queued"} | metadata, data)

    def update(self, context: Any, image_id: str, metadata: dict[str, Any], data: Any = None,
               purge_props: bool = False) -> dict[str, Any]:
        if data is not None:
            content = self._received(image_id, data)
            metadata = metadata | {"size": len(content), "status": "active"}
            self._glance._imagedata[image_id] = content
        return self._update(context, image_id, metadata, purge_props=purge_props)

    def _received(self, image_id: str, data: Any) -> bytes:
        pieces = []
        while True:
            self.at_piece(image_id)
            if image_id not in self._glance.images:
                raise exception.ImageNotAuthorized(image_id=image_id)  # one of Glance's answers to it
            piece = data.read(PIECE)
            self.largest = max(self.largest, len(piece))
            if not piece:
                content = b"".join(pieces)
                return content[:len(content) - self.lost]
            pieces.append(piece)


def filtered(glance: Any) -> Callable[..., list[dict[str, Any]]]:
    """Glance's list with filters on properties, the newest first; nova's fixture lists everything always."""
    everything = glance.detail

    def detail(context: Any, filters: dict[str, str] | None = None, **options: Any) -> list[dict[str, Any]]:
        wanted = {name.removeprefix("property-"): value for name, value in (filters or {}).items()
                  if name.startswith("property-")}
        return [image for image in reversed(everything(context))
                if wanted.items() <= image.get("properties", {}).items()]
    return detail
