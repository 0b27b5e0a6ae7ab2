# SPDX-License-Identifier: Apache-2.0
"""Parse a server's authentication challenges: RFC 9110, section 11.6.1. Pure."""

import re
from collections.abc import Mapping
from typing import NamedTuple

TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # noqa: S105  (RFC 9110's token)
PARAMETER = re.compile(rf'({TOKEN})[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|({TOKEN}))')
SCHEME = re.compile(rf"({TOKEN})(?:[ \t]+[A-Za-z0-9._~+/-]+=*(?=[ \t]*(?:,|$)))?")  # perhaps with a token68
BETWEEN = re.compile(r"[ \t,]*")


class Challenge(NamedTuple):
    """Hold one authentication challenge of a server: a scheme and parameters by name, both in lower case."""

    scheme: str
    parameters: Mapping[str, str]


def parse(text: str) -> list[Challenge]:
    """Return the challenges of ``WWW-Authenticate`` headers joined by commas, up to the first syntax error."""
    found: list[tuple[str, dict[str, str]]] = []
    place = BETWEEN.match(text).end()  # type: ignore[union-attr]  # matches the empty string
    while place < len(text):
        parameter = PARAMETER.match(text, place) if found else None
        match = parameter or SCHEME.match(text, place)
        if match is None:
            break
        if parameter:
            quoted = parameter[2]
            found[-1][1][parameter[1].lower()] = parameter[3] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        else:
            found.append((match[1].lower(), {}))
        place = BETWEEN.match(text, match.end()).end()  # type: ignore[union-attr]
    return [Challenge(scheme, parameters) for scheme, parameters in found]
