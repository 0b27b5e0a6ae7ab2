# SPDX-License-Identifier: Apache-2.0
"""Store the allocations of this host's devices: one small file per device, and a lock around every change.

The records are the host's own truth, whatever the clouds believe. They survive a kill at any instruction: a file
changes as a whole or not at all, and a claim of several devices is announced in a journal first, so that the next
process that takes the lock undoes an interrupted claim. An unreadable record makes every claim fail (fail closed),
and all operations of its own consumer: a file beside it names the last consumer that claimed the device. Fields and
versions of other releases: :mod:`containerhost.linux.records`.
"""

import contextlib
import dataclasses
import datetime
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from containerhost.allocation.provenance import HandOver, Provenance
from containerhost.allocation.record import (
    SUFFIX,
    Allocation,
    Consumer,
    content,
    file_name,
    hidden_name,
    load,
    parse,
    parse_journal,
)
from containerhost.allocation.states import State, require_transition
from containerhost.devices.model import REVOKED, Device
from containerhost.errors import AllocationsUnreadable, DeviceBusy, DeviceHeld, DeviceNotFound
from containerhost.linux.files import UNFINISHED, Directory, sync
from containerhost.linux.lock import FileLock
from containerhost.linux.process.processes import Process
from containerhost.linux.sysfs import Host
from containerhost.rollback import Rollback

DIRECTORY = Path("/var/lib/containerhost/owners")
LOCK_TIMEOUT = 30.0  # seconds; a holder of the lock writes a few small files
WORK_TIMEOUT = 300.0  # seconds; a holder may reset several devices, and each reset has its own time limits
OF_BOOT = frozenset({"netdev"})  # settings of ``restore`` that a reboot invalidates: interface names may change
_LOCK, _JOURNAL, _LAST = ".lock", ".claim", ".last"

# ``gi`` of gi1/ci0, ``share`` of share0, empty for a whole device.
_DIVISION = re.compile(r"[a-z]*")


class AllocationStore:
    """Keep the records in one directory, which all drivers and engines of a host share.

    :param root: the directory; created when first needed
    :param lock_limit: seconds to wait for another process that changes the records
    :param work_limit: seconds to wait for another process that prepares or cleans a device
    :param host: whose boot id the records get
    :ivar provenance: the hand-overs of devices; it changes with the records, under their lock
    """

    def __init__(self, root: Path = DIRECTORY, lock_limit: float = LOCK_TIMEOUT, work_limit: float = WORK_TIMEOUT,
                 host: Host | None = None) -> None:
        self._root = root
        self._host = host or Host()
        self._work_limit = work_limit
        self._lock = FileLock(root / _LOCK, lock_limit)
        self.provenance = Provenance(root, self._put, self._host)

    @property
    def directory(self) -> Path:
        return self._root

    def claim(self, devices: Sequence[Device], consumer: Consumer, related: Callable[[Device], Iterable[Device]]
              ) -> None:
        """Claim all ``devices`` for ``consumer``, or none. It keeps those that it already holds.

        That includes a GPU that is blocked because its container may still use it.

        :param related: the devices that no other consumer may hold at the same time (Inventory.related)
        :raises DeviceHeld: another consumer has one of them or a related one, or one is blocked
        :raises DeviceNotFound: an id is not valid
        :raises AllocationsUnreadable: the records cannot be trusted, or stay locked
        """
        for device in devices:
            file_name(device.id)  # refuse an id that cannot be a file name before anything changes
        with self._locked():
            held = self.require_claimable(devices, consumer, related)
            wanted = {device.id: Allocation(device.id, consumer, boot_id=self._host.boot_id, since=now(),
                                            before=self.provenance.last(device.id))
                      for device in devices if device.id not in held}
            if wanted:
                self._add(tuple(wanted.values()))

    def require_claimable(self, devices: Sequence[Device], consumer: Consumer,
                          related: Callable[[Device], Iterable[Device]]) -> dict[str, Allocation]:
        """Refuse what :meth:`claim` would refuse now, else return all allocations. Takes no lock.

        :raises DeviceHeld, AllocationsUnreadable: as :meth:`claim`
        """
        held = self._read()
        for device in devices:
            _refuse_if_taken(held, device, consumer, related(device))
        return held

    def prepare(self, device_id: str, consumer: Consumer, restore: Mapping[str, str]) -> Allocation:
        """Record the settings to restore on a device; call it *before* changing anything.

        The first record of this boot stays: a repeated attempt would record the changed values as the original ones.
        A device that a container may have had stays ATTACHED.

        :returns: the record as it is now
        :raises DeviceHeld: another consumer does
        """
        with self._locked():
            record = self._owned(device_id, consumer)
            merged = {**restore, **record.restore} if self.in_this_boot(record) else {**record.restore, **restore}
            state = State.PREPARED if record.state is State.CLAIMED else record.state
            record = self._moved(record, state, restore=merged)
            self._write(record)
            return record

    def attach(self, device_ids: Iterable[str], consumer: Consumer) -> None:
        """Record that the consumer's container may have the devices; call it before they are attached.

        :raises DeviceNotFound: one of them is not allocated
        :raises DeviceHeld: another consumer does, or it is blocked and the container was not running without it
        """
        with self._locked():
            owned = [self._owned(device_id, consumer) for device_id in device_ids]
            for record in owned:
                if record.blocked is not None and not record.holders:
                    raise DeviceHeld(f"device {record.device_id} is blocked: {record.blocked}")
            self._write(*(self._moved(record, State.ATTACHED, blocked=None, container=None, holders=None,
                                      given=record.given or now("microseconds")) for record in owned))

    def detach(self, device_ids: Iterable[str], consumer: Consumer, container: int | None) -> None:
        """Record that the devices were detached from the container and stay allocated; call it afterwards.

        :param container: its first process; None if it does not run
        :raises DeviceNotFound: one of them is not allocated
        :raises DeviceHeld: another consumer does, or its container never had it
        """
        process = None if container is None else Process.of(container)
        with self._locked():
            owned = [self._owned(device_id, consumer) for device_id in device_ids]
            self._write(*(self._moved(record, State.DETACHED, container=process,
                                      holders=() if process is None else (process,)) for record in owned))

    def begin_cleaning(self, device_id: str, container: Process | None = None,
                       holders: Iterable[Process] | None = None) -> Allocation:
        """Record that the device, detached from its container, is being cleaned.

        :param container, holders: of :class:`Allocation`; without holders, those that were recorded stay
        :returns: the record as it is now
        :raises DeviceNotFound: the device is not allocated
        """
        with self._locked():
            known = {} if holders is None else {"container": container, "holders": tuple(holders)}
            record = self._moved(self._record(device_id), State.CLEANING, **known)
            self._write(record)
            return record

    def block(self, device_id: str, reason: str) -> None:
        """Block the device until it is cleaned, or until :meth:`free`, because it could not be cleaned.

        :raises DeviceNotFound: the device is not allocated
        """
        with self._locked():
            self._write(self._moved(self._record(device_id), State.BLOCKED, blocked=reason))

    def free(self, device_id: str) -> None:
        """Release a blocked device, whatever its consumer, because the operator cleaned it.

        :raises DeviceNotFound: the device is not allocated
        :raises DeviceHeld: it is not blocked, so its consumer may be using it
        """
        with self._locked():
            record = self._record(device_id)
            if record.blocked is None:
                raise DeviceHeld(f"device {device_id} is not blocked: {record.consumer} holds it")
            self._hand_over(record, None)

    def release(self, device_id: str, consumer: Consumer, cleaning: Mapping[str, Any] | None = None) -> None:
        """Free a device that was cleaned, or that no container had. Idempotent.

        :param cleaning: how it was cleaned, for :attr:`provenance`
        :raises DeviceHeld: another consumer has it, or it is blocked or not clean
        """
        with self._locked(), contextlib.suppress(DeviceNotFound):
            record = self._record(device_id)
            self._refuse_other(record, consumer)
            if record.state is State.BLOCKED:
                raise DeviceHeld(f"device {device_id} is not free: {record.blocked}; clean it, then "
                                 f"`containerhost unblock {device_id}`")
            require_transition(device_id, record.state, State.FREE)
            self._hand_over(record, cleaning)

    def hand_overs(self, device_id: str) -> list[HandOver]:
        """Return the last complete hand-overs of a device, oldest first. Takes no lock.

        :raises DeviceNotFound: the id is not valid
        :raises AllocationsUnreadable: they cannot be read, or the record of the device
        """
        found = self.provenance.of(device_id)
        try:
            given = self._record(device_id).given
        except DeviceNotFound:
            return found
        return [entry for entry in found if entry.get("given") != given]

    def held_by(self, consumer: Consumer) -> dict[str, Allocation]:
        """Return the consumer's records by device id, blocked ones included.

        :raises AllocationsUnreadable: a record that may be the consumer's cannot be read
        """
        return {name: record for name, record in self._read(consumer).items() if record.consumer == consumer}

    def consumers_of(self, driver: str, engine: str) -> frozenset[Consumer]:
        """Return the containers of this driver and engine that have devices."""
        consumers = {record.consumer for record in self.records().values()}
        return frozenset(consumer for consumer in consumers if (consumer.driver, consumer.engine) == (driver, engine))

    def records(self) -> dict[str, Allocation]:
        """Return every record by device id, in that order. Takes no lock.

        :raises AllocationsUnreadable: a record cannot be read
        """
        return self._read()

    def in_this_boot(self, record: Allocation) -> bool:
        """Return whether the host has not restarted since the record was written; True if that is unknown."""
        return record.boot_id is None or self._host.boot_id in (None, record.boot_id)

    # Reading

    def _record(self, device_id: str) -> Allocation:
        """Read one record; the others may be unreadable.

        :raises DeviceNotFound: the device is not allocated
        :raises AllocationsUnreadable: its record cannot be read
        """
        path = self._root / file_name(device_id)
        if not os.path.lexists(path):
            raise DeviceNotFound(f"no container holds device {device_id}")
        return parse(path)

    def _owned(self, device_id: str, consumer: Consumer) -> Allocation:
        record = self._record(device_id)
        self._refuse_other(record, consumer)
        return record

    @staticmethod
    def _refuse_other(record: Allocation, consumer: Consumer) -> None:
        if record.consumer != consumer:
            raise DeviceHeld(f"device {record.device_id} belongs to {record.consumer}, not to {consumer}")

    def _read(self, consumer: Consumer | None = None) -> dict[str, Allocation]:
        """Read all records.

        :param consumer: skip unreadable records that another consumer claimed last
        """
        found = {}
        for name in self._names():
            try:
                record = parse(self._root / name)
            except AllocationsUnreadable as error:
                # A reader without the lock may meet a record that is being released.
                if not os.path.lexists(self._root / name):
                    continue
                last = self._last(name)
                if consumer is not None and last not in (None, consumer):
                    continue
                words = f"{error}; it was last claimed by {last}" if last else str(error)
                raise AllocationsUnreadable(words) from error
            found[record.device_id] = record
        return found

    def _last(self, name: str) -> Consumer | None:
        """Return the consumer that claimed a device last; None if that is unknown."""
        try:
            found = Consumer(**load(self._root / hidden_name(name, _LAST)))
        except (AllocationsUnreadable, TypeError):
            return None
        return found if all(isinstance(text, str) for text in dataclasses.astuple(found)) else None

    def _names(self) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self._root)
                          if name.endswith(SUFFIX) and not name.startswith("."))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise AllocationsUnreadable(f"cannot list the allocation records in {self._root}: {error}") from error

    # Writing; only under the lock

    def _add(self, records: Sequence[Allocation]) -> None:
        """Write new records, all or none. A single file is atomic anyway; several need the journal.

        One sync of the directory is enough: nothing is done with the devices before this returns."""
        ids = [record.device_id for record in records]
        journal = {_JOURNAL: json.dumps(ids)} if len(ids) > 1 else {}
        last = {hidden_name(file_name(record.device_id), _LAST): json.dumps(dataclasses.asdict(record.consumer))
                for record in records}
        with Rollback("claim") as undo:
            if journal:
                undo.on_error("its journal", self._forget_journal)
            undo.on_error("its records", self._remove, ids)
            self._put_all(journal | last | texts(records))
            if journal:
                self._forget_journal()

    def _moved(self, record: Allocation, state: State, **more: Any) -> Allocation:
        """Return the record in another state.

        :raises DeviceHeld: there is no such transition
        """
        require_transition(record.device_id, record.state, state)
        if not self.in_this_boot(record):
            kept = {name: value for name, value in record.restore.items() if name not in OF_BOOT}
            record = dataclasses.replace(record, restore=kept)
        since = record.since if state is record.state else now()
        return dataclasses.replace(record, state=state, boot_id=self._host.boot_id, since=since, **more)

    def _write(self, *records: Allocation) -> None:
        self._put_all(texts(records))

    def _hand_over(self, record: Allocation, cleaning: Mapping[str, Any] | None) -> None:
        self.provenance.add(record, cleaning, now())
        self._remove([record.device_id])

    def _put(self, name: str, text: str, mode: int) -> None:
        self._put_all({name: text}, mode)

    def _put_all(self, files: Mapping[str, str], mode: int = 0o644) -> None:
        """Write files in this order, each atomically, owned by the directory's owner. Called under the lock."""
        with Directory(self._root) as directory:
            directory.write_all({name: f"{text}\n".encode() for name, text in files.items()}, mode,
                                directory.owner if os.geteuid() == 0 else None, f"{UNFINISHED}record")

    def _remove(self, device_ids: Iterable[str]) -> None:
        for device_id in device_ids:
            (self._root / file_name(device_id)).unlink(missing_ok=True)
        sync(self._root)

    # The locks

    @contextlib.contextmanager
    def working(self, device_ids: Iterable[str]) -> Iterator[None]:
        """Exclude all other processes that prepare or clean one of these devices. Not reentrant.

        The records may have changed before the lock was granted: read them again inside.

        :raises DeviceBusy: another process works on it for longer than ``WORK_TIMEOUT``
        :raises AllocationsUnreadable: the locks cannot be taken
        """
        with contextlib.ExitStack() as stack:
            for device_id in sorted(set(device_ids)):  # one global order prevents deadlocks
                lock = self._root / f".{file_name(device_id).removesuffix(SUFFIX)}.working"
                try:
                    stack.enter_context(FileLock(lock, self._work_limit).held())
                except TimeoutError as error:
                    raise DeviceBusy(f"device {device_id} is being prepared or cleaned by another process, which does "
                                     f"not finish: {error}") from error
                except OSError as error:
                    raise AllocationsUnreadable(f"device {device_id} cannot be locked: {error}") from error
            yield

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Exclude every other process and thread, and first undo what a killed one left incomplete."""
        try:
            with self._lock.held():
                self._take_back_interrupted()
                yield
        except OSError as error:
            raise AllocationsUnreadable(f"cannot change the allocation records in {self._root}: {error}") from error

    def _take_back_interrupted(self) -> None:
        journal = self._root / _JOURNAL
        if journal.exists():
            self._remove(parse_journal(journal))
            self._forget_journal()

    def _forget_journal(self) -> None:
        (self._root / _JOURNAL).unlink(missing_ok=True)
        sync(self._root)


def texts(records: Iterable[Allocation]) -> dict[str, str]:
    """Return the content of the records' files, by name."""
    return {file_name(record.device_id): json.dumps(content(record), indent=1) for record in records}


def now(precision: str = "seconds") -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec=precision)


def _refuse_if_taken(records: Mapping[str, Allocation], device: Device, consumer: Consumer, related: Iterable[Device]
                     ) -> None:
    concerned = dict.fromkeys([device.id, *(other.id for other in related)])
    # A GPU may have been partitioned again while containers have its former parts: these are only in the records.
    concerned |= dict.fromkeys(name for name in records if excludes(device.id, name))
    for name in concerned:
        record = records.get(name)
        if record is None:
            continue
        what = f"device {device.id}" if name == device.id else f"device {device.id}, related to {name},"
        returns = name == device.id and record.consumer == consumer and device.kind in REVOKED and record.holders
        if record.blocked is not None and not returns:
            raise DeviceHeld(f"{what} cannot be given to {consumer}: {name} is blocked: {record.blocked}")
        if record.consumer != consumer:
            raise DeviceHeld(f"{what} cannot be given to {consumer}: {record.consumer} holds {name}")


def excludes(one: str, other: str) -> bool:
    """Return whether two device ids overlap: a device and its part, or parts of two partitionings of one GPU."""
    (whole, _, part), (others_whole, _, others_part) = one.partition("/"), other.partition("/")
    return whole == others_whole and _DIVISION.match(part)[0] != _DIVISION.match(others_part)[0]  # type: ignore[index]
