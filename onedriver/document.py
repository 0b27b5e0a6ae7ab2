# SPDX-License-Identifier: Apache-2.0
"""Read OpenNebula's XML as untrusted input: tenants write parts of it, and a line in a template can truncate it.

No entity is expanded, no network or file is accessed, and incomplete documents are refused.
"""

import base64
import binascii
from typing import Any, BinaryIO

from lxml import etree

from onedriver.errors import BadInput

LIMIT = 8 << 20  # bytes; a VM with hundreds of disks and snapshots has less than one MiB
INPUT_LIMIT = LIMIT * 3 // 2  # bytes in base64, with line ends
CUT = ("it was probably cut short: a line 'EOT' in an attribute of the template ends oned's here-document early; "
       "remove that line from the template")

Element = Any  # an element of lxml, which has no type information


def read(stream: BinaryIO) -> bytes:
    """Read a script's standard input; raise BadInput if it is longer than any document of oned's."""
    data = stream.read(INPUT_LIMIT + 1)
    if len(data) > INPUT_LIMIT:
        raise BadInput(f"standard input has more than {INPUT_LIMIT >> 20} MiB, more than oned ever writes; what "
                       "calls this script?")
    return data


def parse(data: bytes, root: str) -> Element:
    """Parse one complete XML document with the root element ``root``; raise BadInput on anything else."""
    if not data.strip():
        raise BadInput(f"standard input is empty, but an XML document <{root}> was expected")
    if len(data) > LIMIT:
        raise BadInput(f"standard input is larger than {LIMIT >> 20} MiB, the limit for <{root}>")
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, dtd_validation=False,
                             huge_tree=False, remove_comments=True, remove_pis=True)
    try:
        element = etree.fromstring(data, parser)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise BadInput(f"standard input is not a complete XML document <{root}> ({error}); {CUT}") from error
    if element.getroottree().docinfo.doctype:
        raise BadInput(f"standard input has a document type declaration, which oned never writes in <{root}>")
    if element.tag != root:
        raise BadInput(f"standard input is <{element.tag}>, not <{root}>")
    return element


def parse_base64(data: bytes, root: str) -> Element:
    """Parse the base64 that oned uses if it runs a script itself instead of by ssh."""
    try:
        decoded = base64.b64decode(b"".join(data.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadInput(f"standard input is not base64 ({error}), but a base64 document <{root}> was "
                       "expected") from error
    return parse(decoded, root)


def parse_either(data: bytes, root: str) -> Element:
    """Parse XML or its base64: XML begins with ``<``, which base64 does not contain."""
    return parse(data, root) if data.lstrip().startswith(b"<") or not data.strip() else parse_base64(data, root)
