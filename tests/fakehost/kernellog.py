# SPDX-License-Identifier: Apache-2.0
"""Emulate /dev/kmsg: what the emulated hardware would have made the kernel say, and what root wrote there.

Format: kernel Documentation/ABI/testing/dev-kmsg. Unlike there, one read may give several messages.
"""

import threading
import time

from tests.fakehost.attributes import Attribute

_KERNEL, _USER = 0, 1  # facilities
_WARNING = 4
_FACILITY_BITS = 3


class KernelLog:
    """Messages since the host's start."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._text = ""
        self._count = 0

    def say(self, message: str) -> None:
        """A message of the kernel itself."""
        self._add(_KERNEL, message)

    def attribute(self) -> Attribute:
        """Return the behaviour of /dev/kmsg: text written to it is marked as not the kernel's own."""
        return Attribute(0o644, lambda: self._text, lambda text: self._add(_USER, text))

    def _add(self, facility: int, message: str) -> None:
        shown = "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in message.rstrip("\n"))
        with self._lock:
            prefix = facility << _FACILITY_BITS | _WARNING
            self._text += f"{prefix},{self._count},{time.monotonic_ns() // 1000},-;{shown}\n"
            self._count += 1
