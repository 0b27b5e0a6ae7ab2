# SPDX-License-Identifier: Apache-2.0
"""Read and write the record of a device's allocation: one JSON object in a file that is named after the device.

Fields and versions of other releases: :mod:`containerhost.linux.records`.
"""

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from containerhost.allocation.states import State
from containerhost.errors import AllocationsUnreadable, DeviceNotFound
from containerhost.linux import records
from containerhost.linux.process.processes import Process

VERSION = 2  # version 1 has no version, state or boot_id
SUFFIX = ".json"
UNKNOWN = "unknown"  # allocation time of a record that an earlier release wrote
# A device id is a PCI address, optionally with a part; in a file name a plus replaces each slash.
ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z:._-]*(?:/[0-9A-Za-z][0-9A-Za-z:._-]*)*")


@dataclasses.dataclass(frozen=True, slots=True)
class Consumer:
    """Identify a container: its driver (``nova``), its engine (``lxd``), its name there and the cloud's uuid."""

    driver: str
    engine: str
    container: str
    uuid: str

    def __str__(self) -> str:
        return f"{self.engine}/{self.container} ({self.driver} {self.uuid})"


@dataclasses.dataclass(frozen=True, slots=True)
class Allocation:
    """Record which consumer has a device, the state of its allocation, and what must be restored to free it.

    :ivar restore: settings to restore before the device is free, by name
    :ivar blocked: why no other container may have the device; None if it is not blocked. Kept while the cleaning is
        repeated
    :ivar boot_id: the host's boot in which the state was written; None if unknown
    :ivar since: start of the present state, in UTC as ISO 8601; None if unknown
    :ivar container: first process of the consumer's container, if it kept running without the device
    :ivar holders: first processes of all containers that may have had the device and were running when it was
        detached; None if unknown
    :ivar given: when a container first got the device, in UTC as ISO 8601; None if none did
    :ivar before: the last hand-over before this allocation, of :mod:`containerhost.allocation.provenance`
    :ivar rest: fields written by other releases
    """

    device_id: str
    consumer: Consumer
    restore: Mapping[str, str] = dataclasses.field(default_factory=dict)
    blocked: str | None = None
    state: State = State.CLAIMED
    boot_id: str | None = dataclasses.field(default=None, compare=False)
    since: str | None = dataclasses.field(default=None, compare=False)
    container: Process | None = dataclasses.field(default=None, compare=False)
    holders: tuple[Process, ...] | None = dataclasses.field(default=None, compare=False)
    given: str | None = dataclasses.field(default=None, compare=False)
    before: Mapping[str, Any] | None = dataclasses.field(default=None, compare=False)
    rest: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False)

    @property
    def netdevs(self) -> tuple[str, ...]:
        """Return the names of a network function's interfaces on the host, in the order of its ports."""
        return tuple(self.restore.get("netdev", "").split())

    @property
    def ended(self) -> bool:
        """Return whether all containers that were running when the device was detached have ended since."""
        return bool(self.holders) and not any(process.lives for process in self.holders or ())


def file_name(device_id: str) -> str:
    if not ID.fullmatch(device_id):
        raise DeviceNotFound(f"{device_id!r} is not a device id: use an id that `containerhost list` shows")
    return device_id.replace("/", "+") + SUFFIX


def hidden_name(name: str, suffix: str) -> str:
    """Return the name of another file about a device."""
    return f".{name.removesuffix(SUFFIX)}{suffix}"


def content(record: Allocation) -> dict[str, Any]:
    return records.content({
        "device_id": record.device_id, "owner": {**record.rest.get("owner", {}), **dataclasses.asdict(record.consumer)},
        "restore": dict(record.restore), "blocked": record.blocked, "state": record.state, "boot_id": record.boot_id,
        "since": record.since, "container": record.container and dataclasses.astuple(record.container),
        "holders": None if record.holders is None else list(map(dataclasses.astuple, record.holders)),
        "given": record.given, "before": record.before,
    }, VERSION, record.rest)


def parse(path: Path) -> Allocation:
    """Parse the file of a record.

    :raises AllocationsUnreadable: it does not have the format of ``_content`` in any version
    """
    data = load(path)
    try:
        rest = records.unknown(data, ("device_id", "owner", "restore", "blocked", "state", "boot_id", "since",
                                      "container", "holders", "given", "before"))
        owner = {field.name: data["owner"][field.name] for field in dataclasses.fields(Consumer)}
        consumer, more = Consumer(**owner), {name: value for name, value in data["owner"].items() if name not in owner}
        state = _state(data)
        given = data.get("given", None if state in (State.CLAIMED, State.PREPARED) else UNKNOWN)
        record = Allocation(
            device_id=data["device_id"], consumer=consumer, restore=data["restore"], blocked=data["blocked"],
            state=state, boot_id=data.get("boot_id"), since=data.get("since"),
            container=_process(data.get("container")), holders=_processes(data.get("holders")),
            given=given, before=data.get("before"),
            rest=rest | ({"owner": more} if more else {}))
        texts = [record.device_id, *owner.values(), *record.restore, *record.restore.values()]
        sound = all(isinstance(text, str) for text in texts)
        sound = sound and all(isinstance(text, str | None)
                              for text in (record.blocked, record.boot_id, record.since, record.given))
        sound = sound and isinstance(record.before, dict | None)
        sound = sound and (record.state is not State.BLOCKED or record.blocked is not None)
        sound = sound and file_name(record.device_id) == path.name
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, DeviceNotFound) as error:
        raise _unreadable(path, repr(error)) from error
    if not sound:
        raise _unreadable(path, "its content is not that of an allocation record of this name")
    return record


def _process(data: Any) -> Process | None:
    if data is None:
        return None
    pid, start = data
    return Process(int(pid), None if start is None else int(start))


def _processes(data: Any) -> tuple[Process, ...] | None:
    return None if data is None else tuple(process for each in data if (process := _process(each)))


def _state(data: Mapping[str, Any]) -> State:
    """Return the state; a missing or unknown one is inferred, assuming that a container had the device."""
    blocked = data["blocked"] is not None
    inferred = State.BLOCKED if blocked else State.ATTACHED
    found = data.get("state", inferred)
    if not isinstance(found, str):
        raise TypeError(f"the state is {found!r}")
    known = set(State) - {State.FREE}
    if blocked:
        known &= {State.BLOCKED, State.CLEANING}
    return State(found) if found in known else inferred


def parse_journal(path: Path) -> list[str]:
    data = load(path)
    if not isinstance(data, list) or not all(isinstance(item, str) and ID.fullmatch(item) for item in data):
        raise _unreadable(path, "as a journal it must be a list of device ids")
    return data


def load(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, str(error)) from error


def _unreadable(path: Path, why: str) -> AllocationsUnreadable:
    return AllocationsUnreadable(f"allocation record {path} cannot be trusted ({why}), so no device is handed out: "
                                 "find out which container has the device, then correct or remove the file")
