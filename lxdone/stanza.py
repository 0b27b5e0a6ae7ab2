"""This driver's part of a configuration file of the front-end, between two lines that mark it. Pure."""

import re

from onedriver.errors import DriverError

NAME = "lxdone"
BEGIN = f"# BEGIN {NAME}: lxdone-install writes what is between these two lines"
END = f"# END {NAME}"
MARKED = re.compile(rf"\n?^{re.escape(BEGIN)}\n.*?^{re.escape(END)}\n", re.M | re.S)
MARKS = re.compile(rf"^# (?:BEGIN|END) {NAME}\b", re.M)
BY_HAND = re.compile(rf"^[^#\n]*\bNAME\s*=\s*\"{NAME}\"", re.M)


class CannotConfigure(DriverError):
    """The file has something that cannot be left and cannot be changed."""


def inserted(text: str, stanza: str) -> str:
    """:param stanza: replaces an earlier one where it is, or comes at the end
    :raises CannotConfigure: the driver was configured by hand, or a mark is missing
    """
    if BY_HAND.search(removed(text)):
        raise CannotConfigure(f'there is a driver with NAME = "{NAME}" outside the lines that lxdone-install writes: '
                              "remove that section first")
    part = f"\n{BEGIN}\n{stanza.strip()}\n{END}\n"
    if MARKED.search(text):
        return MARKED.sub(lambda _: part, text, count=1)
    return (text if text.endswith("\n") or not text else f"{text}\n") + part


def removed(text: str) -> str:
    """:raises CannotConfigure: a mark is missing"""
    rest = MARKED.sub("", text, count=1)
    if MARKS.search(rest):
        raise CannotConfigure(f"the lines {BEGIN!r} and {END!r} are not there once each, in this order: remove what is "
                              "left of that section by hand")
    return rest
