# SPDX-License-Identifier: Apache-2.0
"""Parse the operator's file into the wanted number of virtual functions of each card. Pure.

::

    0000:5e:00.0: 8
    0000:d8:00.1: 0    # none
"""

import re
from collections.abc import Mapping
from typing import Any

from containerhost.errors import SpecError

_NUMBER = re.compile(r"[0-9]{1,5}")


def counts(content: Mapping[str, Any]) -> dict[str, int]:
    """Return the wanted number of virtual functions by the card's address.

    :raises SpecError: a value is not a number
    """
    return {address: _count(address, value) for address, value in content.items()}


def _count(address: str, value: Any) -> int:
    if not isinstance(value, str) or not _NUMBER.fullmatch(value):
        raise SpecError(f"card {address}: {value!r} is not a number of virtual functions, such as 8; 0 is none")
    return int(value)
