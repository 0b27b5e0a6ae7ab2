# SPDX-License-Identifier: Apache-2.0
"""Encode documents for cloud-init that cannot be stored unchanged in configuration, which is text. Pure."""

import base64


def mime_part(kind: str, content: bytes) -> str:
    """Return ``content`` as the one base64 part of a MIME message, which cloud-init unpacks.

    The format is in cloud-init's documentation, user-data formats."""
    return (f"Content-Type: {kind}\nMIME-Version: 1.0\nContent-Transfer-Encoding: base64\n\n"
            + base64.encodebytes(content).decode())
