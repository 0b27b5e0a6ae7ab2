# SPDX-License-Identifier: Apache-2.0
"""Write OpenNebula's template syntax, as probes use it: ``KEY="value"`` and ``NAME=[ KEY="value", … ]``. Pure."""

import base64
from collections.abc import Mapping

Value = str | int | None


def quoted(value: Value) -> str:
    """Quote a value. A backslash escapes a quote; a line feed cannot be written."""
    text = " ".join(str("" if value is None else value).splitlines())
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def line(key: str, value: Value) -> str:
    return f"{key}={quoted(value)}"


def lines(values: Mapping[str, Value]) -> str:
    return "\n".join(line(key, value) for key, value in values.items())


def vector(name: str, values: Mapping[str, Value]) -> str:
    """Return a vector. Attributes without a value are left out."""
    return f"{name}=[ {', '.join(line(key, value) for key, value in values.items() if value is not None)} ]"


def encoded(values: Mapping[str, Value], more: str = "") -> str:
    """Encode the lines of a vm/monitor probe for MONITOR, and further ones, as base64."""
    return base64.b64encode(("\n".join(filter(None, (lines(values), more))) + "\n").encode()).decode()
