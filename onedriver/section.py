# SPDX-License-Identifier: Apache-2.0
"""Read one element's attributes as typed values: numbers, enumerated words, or validated text.

Every error names the attribute and its valid values."""

import decimal
import re
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Self

from onedriver.errors import BadInput

if TYPE_CHECKING:
    from onedriver.document import Element

YES, NO = frozenset({"YES", "TRUE", "1", "ON"}), frozenset({"NO", "FALSE", "0", "OFF"})
MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
INTERFACE = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9_.-]{1,15}")
RESTART = "restart"  # value of the attribute that permits a live migration
MOST_NAMES = 4096  # attributes of one section with names chosen by a tenant
INTEGER = re.compile(r"-?[0-9]{1,18}")
DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


class Section:
    """Read and check the attributes of one XML element of OpenNebula."""

    def __init__(self, element: "Element", name: str) -> None:
        self._element = element
        self.name = name

    def text(self, key: str) -> str | None:
        """Return an attribute's text; None if missing or empty, which OpenNebula does not distinguish either."""
        found = self._element.find(key)
        return None if found is None else (found.text or "").strip() or None

    def required(self, key: str) -> str:
        value = self.text(key)
        if value is None:
            raise BadInput(f"{self.name} has no {key}")
        return value

    def matching(self, key: str, pattern: re.Pattern[str], what: str) -> str | None:
        value = self.text(key)
        if value is not None and not pattern.fullmatch(value):
            raise self._wrong(key, value, what)
        return value

    def integer(self, key: str, least: int = 0) -> int | None:
        value = self.matching(key, INTEGER, "a whole number")
        if value is not None and int(value) < least:
            raise self._wrong(key, value, f"a whole number of {least} or more")
        return None if value is None else int(value)

    def number(self, key: str, least: int = 0) -> int:
        self.required(key)
        return self.integer(key, least) or 0

    def fraction(self, key: str) -> decimal.Decimal | None:
        """Return a decimal number above zero."""
        value = self.matching(key, DECIMAL, "a number above 0, such as 0.5")
        if value is None:
            return None
        if decimal.Decimal(value) <= 0:
            raise self._wrong(key, value, "a number above 0, such as 0.5")
        return decimal.Decimal(value)

    def flag(self, key: str) -> bool | None:
        value = self.text(key)
        if value is None:
            return None
        if value.upper() not in YES | NO:
            raise self._wrong(key, value, "YES or NO")
        return value.upper() in YES

    def choice(self, key: str, words: Collection[str]) -> str | None:
        value = self.text(key)
        if value is not None and value.upper() not in words:
            raise self._wrong(key, value, f"one of {', '.join(sorted(words))}")
        return None if value is None else value.upper()

    def mac(self, key: str) -> str | None:
        value = self.text(key)
        if value is not None and not MAC.fullmatch(value.lower()):
            raise self._wrong(key, value, "a MAC address such as 02:00:0a:63:00:0a")
        return None if value is None else value.lower()

    def interface(self, key: str) -> str | None:
        return self.matching(key, INTERFACE, "an interface name: at most 15 letters, digits, dots, dashes, underscores")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(child.tag for child in self._element)

    def texts(self, prefix: str = "") -> dict[str, str]:
        """Return the text of every attribute by name, in order; the first one of a name counts.

        :param prefix: prefix of the names, in upper case; the names' case is ignored

        Reads at most one more than :data:`MOST_NAMES`, so that callers detect too many (:func:`require_few`), while
        a VM with too many can still be ended.
        """
        found: dict[str, str] = {}
        for child in self._element:
            if len(found) > MOST_NAMES:
                break
            if child.tag.upper().startswith(prefix):
                found.setdefault(child.tag, (child.text or "").strip())
        return found

    def sections(self, key: str) -> Iterator[Self]:
        """Yield the elements of one name, numbered from 0."""
        for index, element in enumerate(self._element.iterfind(key)):
            yield type(self)(element, f"{key} {index} of {self.name}")

    def section(self, key: str) -> Self | None:
        element = self._element.find(key)
        return None if element is None else type(self)(element, f"{key} of {self.name}")

    def _wrong(self, key: str, value: str, what: str) -> BadInput:
        return BadInput(f"{self.name}: {key} is {value[:80]!r}, but must be {what}")


def require_few(texts: Collection[str], name: str) -> None:
    """Refuse a section with too many attributes, given its :meth:`Section.texts`."""
    if len(texts) > MOST_NAMES:
        raise BadInput(f"{name} has more than {MOST_NAMES} attributes: remove some")


def own_flag(own: Mapping[str, str], key: str) -> bool:
    """Read a boolean attribute of a driver; False by default."""
    value = own.get(key, "").upper()
    if value and value not in YES | NO:
        raise BadInput(f"{key} is {value[:80]!r}, but must be YES or NO")
    return value in YES


def restarts_to_migrate(own: Mapping[str, str], key: str) -> bool:
    """Return whether the VM may be restarted by a live migration; raise BadInput on another value than that."""
    text = own.get(key, "").strip().lower()
    if text not in ("", RESTART):
        raise BadInput(f"{key} is {text[:60]!r}, but must be {RESTART}")
    return text == RESTART
