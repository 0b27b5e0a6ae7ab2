# SPDX-License-Identifier: Apache-2.0
"""Parse the names of MIG profiles.

Source: MIG User Guide, "MIG Device Names" and "Supported MIG Profiles"; the kinds of profiles are those of
``GPU_INSTANCE_PROFILE_*`` in the header of the vendor's management library.
"""

import re
from typing import NamedTuple

#: What a profile has of media and graphics engines, beside the plain ones: its share of them, graphics, none, all.
#: Clouds have names with the place of each in this tuple: add others at its end.
SUFFIXES = ("", "+me", "+gfx", "-me", "+me.all")
PATTERN = re.compile(r"(?:(?P<part>[1-7])c\.)?(?P<whole>(?P<slices>[1-8])g\.(?P<memory>[1-9][0-9]{0,3})gb"
                     r"(?P<suffix>\+me\.all|\+me|\+gfx|-me)?)")


class MigProfile(NamedTuple):
    """Hold the parts of a MIG profile's name, such as ``1c.3g.20gb``.

    :ivar part: compute slices of a compute instance that is smaller than its GPU instance; otherwise None
    :ivar slices: compute slices of the GPU instance
    :ivar memory: GB of the GPU instance, as its name says
    :ivar suffix: one of SUFFIXES
    """

    part: int | None
    slices: int
    memory: int
    suffix: str


def parse(name: str | None) -> MigProfile | None:
    """Parse a name such as ``1g.5gb``, ``2g.48gb+me.all`` or ``1c.3g.20gb``; return None for another format."""
    match = PATTERN.fullmatch((name or "").lower())
    if match is None:
        return None
    return MigProfile(int(match["part"]) if match["part"] else None, int(match["slices"]), int(match["memory"]),
                      match["suffix"] or "")
