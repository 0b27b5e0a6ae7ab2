"""What can be wrong with an image file, in words that complete the sentence "Image X is unacceptable: …"."""


class BadImage(Exception):
    """Damaged, or nothing a container can boot from."""


class TooLarge(BadImage):
    """:ivar size: bytes unpacked, at least
    :ivar limit: bytes it may have
    """

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"it takes at least {size} bytes unpacked, {limit} are allowed")
        self.size = size
        self.limit = limit
