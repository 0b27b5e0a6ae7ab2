# SPDX-License-Identifier: Apache-2.0
"""Define the reasons to refuse an image, as text that completes the sentence "Image X is unacceptable: …"."""

from containerhost.errors import ContainerHostError


class BadImage(ContainerHostError):
    """Signal that an archive is damaged, hostile, or not bootable as a container."""


class TooLarge(BadImage):
    """Signal that an image takes more bytes unpacked than are allowed."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"it takes at least {size} bytes unpacked, {limit} are allowed")
        self.size = size
        self.limit = limit
