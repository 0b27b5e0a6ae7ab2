# SPDX-License-Identifier: Apache-2.0
"""The graphics nodes of a PCI function: /dev/dri/cardN and renderDN, as its ``drm`` folder in sysfs names them."""

import re

from containerhost.devices.model import CharNode
from containerhost.sysfs import Host

_NODE = re.compile(r"(?:card|renderD)[0-9]{1,4}")


def nodes(host: Host, function: str) -> tuple[CharNode, ...]:
    """:param function: the PCI function's folder in sysfs"""
    folder = f"{function}/drm"
    found = []
    for name in host.names(folder):
        number = host.char_number(f"{folder}/{name}/dev") if _NODE.fullmatch(name) else None
        if number:
            found.append(CharNode(f"/dev/dri/{name}", *number))
    return tuple(found)
