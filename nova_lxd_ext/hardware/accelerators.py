# SPDX-License-Identifier: Apache-2.0
"""Translate Cyborg's accelerator requests (ARQs) of a server to PCI addresses of this host. Pure.

Cyborg binds an ARQ before nova boots the server; its attach handle names what the driver must attach
(cyborg's API reference, "Accelerator Requests").
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from containerhost.errors import SpecError

PCI: Final = "PCI"

# Cyborg writes the parts of an address in hexadecimal, with or without leading zeros.
_PARTS: Final = {"domain": (re.compile(r"[0-9a-fA-F]{1,8}"), 4), "bus": (re.compile(r"[0-9a-fA-F]{1,2}"), 2),
                 "device": (re.compile(r"[01]?[0-9a-fA-F]"), 2), "function": (re.compile(r"[0-7]"), 1)}


def addresses(arqs: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return PCI addresses in the kernel's format, in the stable order of the ARQs' uuids.

    :raises SpecError: an ARQ's handle is missing or not a PCI function
    """
    return tuple(_address(arq) for arq in sorted(arqs, key=lambda arq: str(arq.get("uuid"))))


def _address(arq: Mapping[str, Any]) -> str:
    kind, handle = arq.get("attach_handle_type"), arq.get("attach_handle_info") or {}
    if kind != PCI:
        raise SpecError(f"accelerator request {arq.get('uuid')} has the attach handle type {kind or 'none'}; "
                        f"containers support only whole PCI functions: offer the device as {PCI} in cyborg")
    return "{domain}:{bus}:{device}.{function}".format_map({part: _digits(arq, handle, part) for part in _PARTS})


def _digits(arq: Mapping[str, Any], handle: Mapping[str, Any], part: str) -> str:
    pattern, width = _PARTS[part]
    text = str(handle.get(part, "")).removeprefix("0x")
    if not pattern.fullmatch(text):
        raise SpecError(f"accelerator request {arq.get('uuid')} names the {part} {handle.get(part)!r} in its PCI "
                        f"address {dict(handle)}, which is not such a number")
    return f"{int(text, 16):0{width}x}"
