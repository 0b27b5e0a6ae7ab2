# SPDX-License-Identifier: Apache-2.0
"""Keep devices from new consumers by the operator's decision, or tolerate a complaint: taints and tolerations.

A *taint* is one more complaint of the device's health, with the operator's reason, whose cause is not the device
itself (:attr:`Device.outside`): no new consumer gets the device; its present one may start with it again and release
it. A *toleration* turns the device's present complaints into notes; another complaint makes it sick again. Both hold
for the device and its parts: slices and shares of a GPU, virtual functions of a card. They outlast a restart of the
host, and end with ``containerhost untaint``.

A malformed file keeps every device from new consumers: otherwise a tainted one could be allocated.
"""

import contextlib
import dataclasses
import datetime
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from containerhost.devices.model import Device
from containerhost.errors import HostActionFailed, SpecError
from containerhost.linux import records
from containerhost.linux.files import atomic_write
from containerhost.linux.lock import FileLock
from containerhost.linux.sysfs import TABLE_LIMIT, Host

FILE = "/var/lib/containerhost/taints.json"
VERSION = 1
LOCK_TIMEOUT = 10.0  # seconds; a holder writes one small file
REASON_LIMIT = 200  # characters; the reason becomes part of messages, and of a VM's monitoring
SAYS = "tainted by the operator: {reason}"


@dataclasses.dataclass(frozen=True)
class Taint:
    """Hold the operator's decision about one device.

    :ivar reason: of the taint; None if the device is not tainted
    :ivar tolerated: complaints that are notes
    :ivar since: time of the last decision, in UTC as ISO 8601
    """

    reason: str | None = None
    tolerated: tuple[str, ...] = ()
    since: str = ""


@dataclasses.dataclass(frozen=True)
class Taints:
    """Hold the operator's taints and tolerations of this host's devices.

    :ivar trouble: why the file is malformed; None if it is valid or missing
    """

    by_id: Mapping[str, Taint] = dataclasses.field(default_factory=dict)
    trouble: str | None = None


def read(host: Host) -> Taints:
    if not host.exists(FILE):
        return Taints()
    data = host.data(FILE, TABLE_LIMIT)
    try:
        return Taints(_parsed(json.loads(data or b"")))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return Taints(trouble=f"{FILE} is not understood ({error}), so it may be tainted: correct or remove the file")


def tolerant(devices: Iterable[Device], taints: Taints) -> Iterator[Device]:
    """Yield the devices with tolerated complaints as notes. Pure."""
    for device in devices:
        tolerated = {text for _, taint in _of(device, taints) for text in taint.tolerated} & set(device.health)
        yield device if not tolerated else dataclasses.replace(
            device, health=tuple(text for text in device.health if text not in tolerated),
            notes=(*device.notes, *(f"tolerated: {text}" for text in device.health if text in tolerated)))


def tainted(devices: Iterable[Device], taints: Taints) -> Iterator[Device]:
    """Yield the devices with their taints as complaints. Pure."""
    for device in devices:
        reason = next((taint.reason for _, taint in _of(device, taints) if taint.reason), None)
        said = taints.trouble or complaint(reason)
        yield device if said is None else dataclasses.replace(
            device, taint=reason, health=(*device.health, said), outside=(*device.outside, said))


def complaint(reason: str | None) -> str | None:
    return SAYS.format(reason=reason) if reason else None


def source(device: Device, taints: Taints) -> str | None:
    """Return the id of the device whose taint this one has: its own, its GPU's or its card's."""
    return next((name for name, taint in _of(device, taints) if taint.reason), None)


def without(taints: Taints, device_ids: Collection[str]) -> Taints:
    """Return the decisions about other devices than these. Pure."""
    return dataclasses.replace(taints, by_id={name: taint for name, taint in taints.by_id.items()
                                              if name not in device_ids})


def _of(device: Device, taints: Taints) -> Iterator[tuple[str, Taint]]:
    if taints.by_id:
        names = dict.fromkeys((device.id, device.address, device.parent or device.id))
        yield from ((name, taints.by_id[name]) for name in names if name in taints.by_id)


class TaintFile:
    """Change the operator's decisions. Every method is idempotent."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._path = Path(host.root, FILE.lstrip("/"))

    def taint(self, device_id: str, reason: str) -> None:
        """Keep the device from new consumers.

        :raises SpecError: the reason is empty, too long, or more than one line
        """
        if not reason.strip() or len(reason) > REASON_LIMIT or not reason.isprintable():
            raise SpecError(f"the reason of a taint is one line of at most {REASON_LIMIT} printable characters, not "
                            f"{reason!r}")
        self._change(device_id, reason=reason)

    def tolerate(self, device_id: str, complaints: Iterable[str]) -> None:
        """Permit the allocation of the device despite these complaints."""
        self._change(device_id, tolerated=tuple(complaints))

    def untaint(self, device_id: str) -> bool:
        """Withdraw the taint and the tolerations of the device."""
        with self._locked() as known:
            found = known.pop(device_id, None)
            if found is not None:
                self._write(known)
            return found is not None

    def _change(self, device_id: str, **change: Any) -> None:
        with self._locked() as known:
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            known[device_id] = dataclasses.replace(known.get(device_id, Taint()), since=now, **change)
            self._write(known)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[dict[str, Taint]]:
        """Yield the decisions, excluding concurrent changes.

        :raises HostActionFailed: the file cannot be changed, or is malformed
        """
        try:
            with FileLock(self._path.with_name(".taints.lock"), LOCK_TIMEOUT).held():
                found = read(self._host)
                if found.trouble:
                    raise HostActionFailed(found.trouble)
                yield dict(found.by_id)
        except OSError as error:
            raise HostActionFailed(f"{self._path} cannot be changed: {error.strerror or error}") from error

    def _write(self, known: Mapping[str, Taint]) -> None:
        rows = {device_id: dataclasses.asdict(taint) for device_id, taint in sorted(known.items())}
        atomic_write(self._path, json.dumps(records.content({"devices": rows}, VERSION), indent=1).encode(), 0o644)


def _parsed(content: Any) -> dict[str, Taint]:
    """Parse the file's content.

    :raises ValueError, KeyError, TypeError, AttributeError: it does not have this module's format
    """
    records.version(content)
    found = {}
    for device_id, row in content["devices"].items():
        taint = Taint(row["reason"], tuple(row["tolerated"]), row["since"])
        texts = (*taint.tolerated, taint.since, *([taint.reason] if taint.reason is not None else []))
        if not all(isinstance(text, str) for text in texts):
            raise ValueError(f"the entry of {device_id} is {row!r}")
        found[device_id] = taint
    return found
