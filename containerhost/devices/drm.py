# SPDX-License-Identifier: Apache-2.0
"""Find a PCI function's graphics nodes, /dev/dri/cardN and renderDN, as its ``drm`` directory names them."""

import re

from containerhost.devices.model import CharNode
from containerhost.linux.sysfs import Host

_NODE = re.compile(r"(?:card|renderD)[0-9]{1,4}")


def nodes(host: Host, function: str) -> tuple[CharNode, ...]:
    """Return the DRM nodes of a function."""
    directory = f"{function}/drm"
    found = []
    for name in host.names(directory):
        number = host.char_number(f"{directory}/{name}/dev") if _NODE.fullmatch(name) else None
        if number:
            found.append(CharNode(f"/dev/dri/{name}", *number))
    return tuple(found)
