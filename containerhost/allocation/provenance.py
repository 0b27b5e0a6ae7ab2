# SPDX-License-Identifier: Apache-2.0
"""Keep the last hand-overs of each device: when a container had it, and how it was cleaned, signed by this host.

A hand-over is written before the record of its allocation is removed, so a crash between the two loses neither; it
counts once that record is gone, and a device that is cleaned once more replaces it. The key pair is Ed25519 and no
shared secret: an auditor who verifies cannot sign. ``cryptography`` comes with pylxd; it is loaded when a device is
handed over.
"""

import base64
import binascii
import hashlib
import hmac
import json
import logging
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from containerhost.allocation.record import Allocation, file_name, hidden_name
from containerhost.errors import AllocationsUnreadable
from containerhost.linux.sysfs import Host

LOG = logging.getLogger(__name__)

KEPT = 10  # hand-overs kept for each device
KEPT_FILE = "/etc/containerhost/handovers"  # contains another value for KEPT
SUFFIX = ".handovers"
KEY, PUBLIC_KEY = ".host.key", ".host.pub"  # the key's seed in hexadecimal; the public key in Base64

REMEDY = "move the file away to keep it; the next release begins a new one"

HandOver = dict[str, Any]


class Provenance:
    """Keep the hand-overs of a host's devices in a file for each device beside the allocation records.

    :param put: writes a file of the directory by name, text and mode, durably; the caller holds the store's lock
    :param host: whose ``KEPT_FILE`` is read
    """

    def __init__(self, root: Path, put: Callable[[str, str, int], None], host: Host) -> None:
        self._root = root
        self._put = put
        self._host = host

    def of(self, device_id: str) -> list[HandOver]:
        """Return the hand-overs of a device, oldest first.

        :raises AllocationsUnreadable: they cannot be read
        """
        path = self._root / hidden_name(file_name(device_id), SUFFIX)
        try:
            found = json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            return []
        except (OSError, ValueError, RecursionError) as error:
            raise AllocationsUnreadable(f"the hand-overs in {path} cannot be read ({error}): {REMEDY}") from error
        if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
            raise AllocationsUnreadable(f"{path} is not a list of hand-overs: {REMEDY}")
        return found

    def last(self, device_id: str) -> HandOver | None:
        """Return the last hand-over of a free device; None if there is none, or none that can be read."""
        found = self._readable(device_id)
        return found[-1] if found else None

    def add(self, record: Allocation, cleaning: Mapping[str, Any] | None, released: str) -> None:
        """Record the hand-over of a device, unless no container had it. Called under the store's lock.

        :param cleaning: the steps and results of the cleaning; None if the operator freed it manually
        """
        if record.given is None:
            return
        seed = self._seed()
        before = [entry for entry in self._readable(record.device_id) if entry.get("given") != record.given]
        number = before[-1].get("number") if before else None
        entry = {"device": record.device_id, "number": number + 1 if isinstance(number, int) else 1,
                 "consumer": opaque(seed, record.device_id, record.given, record.consumer.uuid),
                 "given": record.given, "released": released, "cleaned": None, **(cleaning or {})}
        kept = self._host.number(KEPT_FILE) or KEPT
        text = json.dumps([*before, signed(entry, seed)][-kept:], indent=1)
        self._put(hidden_name(file_name(record.device_id), SUFFIX), text, 0o644)

    def public_key(self) -> str | None:
        """Return the host's public key as Base64; None before the first hand-over."""
        try:
            return (self._root / PUBLIC_KEY).read_text("ascii", "replace").strip()
        except FileNotFoundError:
            return None

    def seed(self) -> bytes:
        """Return the secret key, which only the directory's owner can read.

        :raises OSError, ValueError: there is none
        """
        seed = bytes.fromhex((self._root / KEY).read_text("ascii"))
        if len(seed) != 32:
            raise ValueError(f"{self._root / KEY} has {len(seed)} bytes")
        return seed

    def _seed(self) -> bytes:
        try:
            seed, new = self.seed(), False
        except (FileNotFoundError, PermissionError, ValueError) as error:
            if not isinstance(error, FileNotFoundError):
                LOG.warning("The host's key is replaced, and earlier signatures cannot be verified: %s", error)
            seed, new = secrets.token_bytes(32), True
        if self.public_key() != (public := public_key(seed)):  # it may have been lost or damaged
            self._put(PUBLIC_KEY, public, 0o644)
        if new:
            self._put(KEY, seed.hex(), 0o600)  # written last: if it is missing, both files are created again
        return seed

    def _readable(self, device_id: str) -> list[HandOver]:
        """Return the hand-overs of a device; nothing if they are unreadable, which must not keep the device blocked."""
        try:
            return self.of(device_id)
        except AllocationsUnreadable as error:
            LOG.warning("The hand-overs of device %s are unknown: %s", device_id, error)
            return []


def opaque(seed: bytes, device_id: str, given: str, uuid: str) -> str:
    """Return the id of a consumer in one hand-over; only the key links it to another hand-over, or to the uuid."""
    return hmac.new(seed, f"consumer {device_id} {given} {uuid}".encode(), hashlib.sha256).hexdigest()[:32]


def public_key(seed: bytes) -> str:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415  (most actions free no device)

    return base64.b64encode(Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()).decode()


def signed(entry: Mapping[str, Any], seed: bytes) -> HandOver:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415  (as above)

    entry = {**entry, "key": public_key(seed)}
    signature = Ed25519PrivateKey.from_private_bytes(seed).sign(_text(entry))
    return entry | {"signature": base64.b64encode(signature).decode()}


def complaint(entry: Mapping[str, Any], device_id: str, key: str | None) -> str | None:
    """Return why a hand-over is invalid; None if this host signed it for the device and it is unmodified.

    :param key: the host's public key
    """
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415  (as above)
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415

    if key is None or entry.get("key") != key:
        return "signed with another key than this host's"
    try:
        Ed25519PublicKey.from_public_bytes(base64.b64decode(key, validate=True)).verify(
            base64.b64decode(entry["signature"], validate=True), _text(entry))
    except (InvalidSignature, binascii.Error, KeyError, TypeError, ValueError):
        return "changed since it was signed"
    return None if entry.get("device") == device_id else "of another device"


def _text(entry: Mapping[str, Any]) -> bytes:
    """Return the signed text: JSON without white space, with sorted keys, without the signature itself."""
    return json.dumps({name: value for name, value in entry.items() if name != "signature"}, sort_keys=True,
                      separators=(",", ":")).encode()
