# SPDX-License-Identifier: Apache-2.0
"""Create the ssh key of a job, which is in memory, in the members' user data and in the job's record."""

import dataclasses

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


@dataclasses.dataclass(frozen=True)
class KeyPair:
    """Hold an ed25519 key pair in OpenSSH's formats."""

    public: str
    private: str = dataclasses.field(repr=False)


def make(comment: str) -> KeyPair:
    """Return a new key."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH,
                                serialization.NoEncryption())
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return KeyPair(f"{public.decode()} {comment}", private.decode())
