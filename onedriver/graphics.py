# SPDX-License-Identifier: Apache-2.0
"""Read the screen in a VM's template (GRAPHICS): a console over VNC. Pure.

It is only read to start a console: a VM with an invalid one can still be ended.
"""

import dataclasses
import ipaddress
import re
from collections.abc import Mapping

from onedriver.errors import BadInput
from onedriver.section import require_few

VNC = "VNC"
OTHERS = frozenset({"SDL", "SPICE"})  # types of other drivers; ignored, as by OpenNebula's own driver for LXC
LOOPBACK = "127.0.0.1"
# First port of VNC, and of oned (VNC_PORTS). Lower ports belong to services of the host.
FIRST_PORT, LAST_PORT = 5900, 65535
PASSWORD = re.compile(r"[ -~]{1,64}")


@dataclasses.dataclass(frozen=True)
class Vnc:
    """Hold the address, port and password of the VNC console in a VM's template.

    :ivar password: the protocol uses eight characters of it; None admits everyone
    """

    listen: str
    port: int
    password: str | None = dataclasses.field(default=None, repr=False)


def vnc(vm_id: int, graphics: Mapping[str, str]) -> Vnc | None:
    """Return the VNC console of a template.

    :returns: None if the VM has no screen, or one of a type that containers do not support
    :raises BadInput: an attribute is invalid
    """
    require_few(graphics, f"GRAPHICS of VM {vm_id}")
    kind = graphics.get("TYPE", "").upper()
    if not kind or kind in OTHERS:
        return None
    if kind != VNC:
        raise wrong(vm_id, "TYPE", graphics["TYPE"], f"{VNC} (or {', '.join(sorted(OTHERS))}, which are ignored)")
    return Vnc(listen(vm_id, graphics.get("LISTEN", "")), port(vm_id, graphics.get("PORT", "")),
               password(vm_id, graphics.get("PASSWD", "")))


def listen(vm_id: int, text: str) -> str:
    try:
        return str(ipaddress.ip_address(text or LOOPBACK))
    except ValueError:
        raise wrong(vm_id, "LISTEN", text, "an IP address, such as 0.0.0.0") from None


def port(vm_id: int, text: str) -> int:
    """Return the port, which a tenant may choose, except ports of the host's services."""
    if not re.fullmatch(r"[0-9]{1,5}", text) or not FIRST_PORT <= int(text) <= LAST_PORT:
        raise wrong(vm_id, "PORT", text, f"a number from {FIRST_PORT} to {LAST_PORT}; oned chooses one where the "
                    "template has none")
    return int(text)


def password(vm_id: int, text: str) -> str | None:
    if text and not PASSWORD.fullmatch(text):
        raise BadInput(f"GRAPHICS of VM {vm_id}: PASSWD must be at most 64 ASCII characters")
    return text or None


def wrong(vm_id: int, key: str, text: str, what: str) -> BadInput:
    return BadInput(f"GRAPHICS of VM {vm_id}: {key} is {text[:60]!r}, but must be {what}")
