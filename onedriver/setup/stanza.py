# SPDX-License-Identifier: Apache-2.0
"""Edit a driver's part of a front-end's configuration file: a marked section, and words in shared lists. Pure."""

import re
from collections.abc import Collection, Sequence

from onedriver.errors import DriverError


class CannotConfigure(DriverError):
    """Signal that the file has a conflicting setting that cannot be changed."""


def inserted(text: str, stanza: str, driver: str, position: int | None = None) -> str:
    """Return the text with the driver's section.

    :param position: position of a new one, at the beginning of a line; None for the end
    :raises CannotConfigure: the driver was configured by hand, or a mark is missing
    """
    begin, end = marks(driver)
    if re.search(rf"^[^#\n]*\bNAME\s*=\s*\"{driver}\"", removed(text, driver), re.M):
        raise CannotConfigure(f'there is a driver with NAME = "{driver}" outside the lines that {driver}-install '
                              "writes: remove that section first")
    part = f"\n{begin}\n{stanza.strip()}\n{end}\n"
    if marked(driver).search(text):
        return marked(driver).sub(lambda _: part, text, count=1)
    if position is None:
        return (text if text.endswith("\n") or not text else f"{text}\n") + part
    return text[:position] + part + text[position:]


def removed(text: str, driver: str) -> str:
    """Return the text without the driver's section; raise CannotConfigure if a mark is missing."""
    begin, end = marks(driver)
    rest = marked(driver).sub("", text, count=1)
    if re.search(rf"^# (?:BEGIN|END) {driver}\b", rest, re.M):
        raise CannotConfigure(f"the lines {begin!r} and {end!r} must each be there once, in this order: remove the "
                              "rest of that section manually")
    return rest


def marks(driver: str) -> tuple[str, str]:
    return f"# BEGIN {driver}: {driver}-install writes what is between these two lines", f"# END {driver}"


def marked(driver: str) -> re.Pattern[str]:
    begin, end = map(re.escape, marks(driver))
    return re.compile(rf"\n?^{begin}\n.*?^{end}\n", re.M | re.S)


# Lists of drivers: ``TM_MAD = [ EXECUTABLE = "one_tm", ARGUMENTS = "-t 15 -d dummy,ssh" ]``.

Lists = Collection[tuple[str, str]]  # section and option: ("TM_MAD", "-d")


def listed(text: str, lists: Lists, driver: str) -> str:
    """Add the driver to the lists of a section; raise CannotConfigure without such a section or list."""
    for section, option in lists:
        found = members(text, section, option)
        if found is None:
            raise CannotConfigure(f"there is no section {section} with ARGUMENTS that have a list of drivers "
                                  f"({option} NAME,…), to which {driver} could be added")
        if driver not in found[1].split(","):
            text = f"{text[:found.end(1)]},{driver}{text[found.end(1):]}"
    return text


def unlisted(text: str, lists: Lists, driver: str) -> str:
    for section, option in lists:
        found = members(text, section, option)
        if found is not None:
            rest = ",".join(name for name in found[1].split(",") if name != driver)
            text = text[:found.start(1)] + rest + text[found.end(1):]
    return text


def members(text: str, section: str, option: str) -> re.Match[str] | None:
    return re.search(rf'^[ \t]*{section}\s*=\s*\[[^\]#]*?\bARGUMENTS\s*=\s*"[^"]*?(?<!\S){option} ?([\w,-]+)', text,
                     re.M)


# Lists in a file of shell variables: ``LIVE_DISK_SNAPSHOTS="kvm-qcow2 kvm-ssh"``.


def with_words(text: str, variable: str, words: Sequence[str]) -> str:
    """Add words to the list of a variable; raise CannotConfigure if there is no such list."""
    found = words_of(text, variable)
    if found is None:
        raise CannotConfigure(f"there is no line {variable}=\"…\" to which {' '.join(words)} could be added")
    before = found[1].split()
    return replaced(text, found, [*before, *(word for word in words if word not in before)])


def without_words(text: str, variable: str, words: Collection[str]) -> str:
    found = words_of(text, variable)
    return text if found is None else replaced(text, found, [word for word in found[1].split() if word not in words])


def words_of(text: str, variable: str) -> re.Match[str] | None:
    return re.search(rf'^{variable}="([^"\n]*)"', text, re.M)


def replaced(text: str, found: re.Match[str], words: Sequence[str]) -> str:
    return text if words == found[1].split() else text[:found.start(1)] + " ".join(words) + text[found.end(1):]


# Operations in ``oned.conf``: words separated by commas or line breaks.

OWNERS_OPERATIONS = re.compile(r'^[ \t]*VM_MANAGE_OPERATIONS\s*=\s*"([^"]*)"', re.M)


def lets_owners_exec(text: str) -> bool:
    """Return whether ``oned.conf`` permits the owner of a VM to call ``exec``, which is OpenNebula's default."""
    found = OWNERS_OPERATIONS.findall(text)
    return not found or "exec" in re.split(r"[\s,]+", found[-1])
