# SPDX-License-Identifier: Apache-2.0
"""Encrypt monitor messages if monitord.conf names a key pair: RSA, PKCS #1 v1.5, block by block."""

import re
from collections.abc import Callable

from onedriver.errors import BadInput

PADDING = 11  # bytes; overhead of PKCS #1 v1.5
PEM = re.compile(r"-+BEGIN (?P<kind>(RSA )?PUBLIC KEY)-+(?P<body>[A-Za-z0-9+/=\s]+)-+END (?P=kind)-+")

Encrypt = Callable[[bytes], bytes]


def encryption(pem: str) -> Encrypt:
    """Return the function that encrypts with a public key.

    :param pem: the public key; onemonitord may have replaced its line feeds by spaces
    :raises BadInput: it is not a key
    """
    # Imported on demand: only clients of a front-end with keys need this large library.
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import padding, rsa  # noqa: PLC0415

    match = PEM.search(pem)
    if match is None:
        raise BadInput("PUBKEY of monitord.conf is not a public key in PEM format")
    kind, body = match["kind"], "\n".join(match["body"].split())
    try:
        key = serialization.load_pem_public_key(f"-----BEGIN {kind}-----\n{body}\n-----END {kind}-----\n".encode())
    except ValueError as error:
        raise BadInput(f"PUBKEY of monitord.conf cannot be read: {error}") from error
    if not isinstance(key, rsa.RSAPublicKey):
        raise BadInput("PUBKEY of monitord.conf is not an RSA key")
    step = key.key_size // 8 - PADDING

    def encrypt(data: bytes) -> bytes:
        return b"".join(key.encrypt(data[offset:offset + step], padding.PKCS1v15())
                        for offset in range(0, len(data), step))

    return encrypt
