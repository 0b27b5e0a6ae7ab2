# SPDX-License-Identifier: Apache-2.0
"""Read monitor messages as the front-end does."""

import base64
import zlib

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15

from onedriver.cipher import Encrypt
from onedriver.monitor import Message


def read(data: bytes, decrypt: Encrypt = bytes) -> Message:
    """Read a message.

    :param decrypt: the other way than what the message was written with
    """
    kind, result, host, time, payload = data.removesuffix(b"\n").decode().split(" ")
    text = decrypt(zlib.decompress(base64.b64decode(payload, validate=True))).decode()
    return Message(kind, {"SUCCESS": True, "FAILURE": False}[result], int(host), int(time), text)


def decryption(private: rsa.RSAPrivateKey) -> Encrypt:
    """Return a decryption that does what the front-end does."""
    size = private.key_size // 8
    return lambda data: b"".join(private.decrypt(data[place:place + size], PKCS1v15())
                                 for place in range(0, len(data), size))
