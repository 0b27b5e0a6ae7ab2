# SPDX-License-Identifier: Apache-2.0
"""Share a file system in memory (tmpfs) among the containers that a job has on this host, as their /dev/shm.

Such memory is mounted on the host while a member has a container here, and only its members see it. Which containers
are members is in a record on disk, written before the mount is made and removed after it is gone: after a reboot the
start of each member mounts it again, and :meth:`reconcile` removes the remains of killed processes.

A member can send an open device to a socket of another in it, where no table of open files lists it. So the record
keeps who left and still has devices: for these the other members are checked, too (:meth:`SharedMemories.mates`).

Pages of a tmpfs are charged to the control group of the container that touches them first, and stay when that ends,
as long as there is another member. So it may not be larger than the memory of any member.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.errors import AllocationsUnreadable, EngineNotFound, SpecError
from containerhost.linux import records
from containerhost.linux.files import UNFINISHED, Directory
from containerhost.linux.lock import FileLock
from containerhost.linux.storage.idmounts import IdMap
from containerhost.linux.storage.memorymounts import MOUNTS
from containerhost.privileged import Privileged
from containerhost.rollback import Rollback

TARGET = "/dev/shm"  # noqa: S108  (in a container)
MIB = 1 << 20
LOCK_TIMEOUT = 30.0  # s; a holder mounts a file system and writes a small file
VERSION = 1  # suffix of the records
SUFFIX = ".json"


@dataclasses.dataclass(frozen=True)
class JobMemory:
    """Describe the shared memory that a container requests.

    :ivar tenant, job: from the cloud, never from the guest
    :ivar size: bytes
    """

    tenant: str
    job: str
    size: int


class SharedMemories:
    """Share the memory of jobs of one driver and engine on this host: mount it while it has members, then unmount it.

    :param owners: directory of the allocation records; those of shared memory are below it
    """

    def __init__(self, owners: Path, driver: str, engine: str, mounts: Privileged) -> None:
        self._directory = directory = owners / "memory"
        self._prefix = f"{driver}-{engine}-"
        self._mounts = mounts
        self._devices = AllocationStore(owners)
        self._lock = FileLock(directory / ".lock", LOCK_TIMEOUT)

    def path(self, wanted: JobMemory) -> str:
        """Return the mount point on the host, for an engine whose containers all have the same user ids."""
        return str(MOUNTS / self._name(wanted))

    def view(self, wanted: JobMemory, member: Consumer) -> str:
        """Return the mount point of a member's view on the host, for a container with its own user id range."""
        return str(MOUNTS / view_name(self._name(wanted), member))

    def show(self, wanted: JobMemory, member: Consumer, ids: IdMap | None) -> None:
        """Mount a member's view before the container, which has joined, starts.

        :param ids: the container's; None where its users are the host's
        """
        self._mounts.show_memory(view_name(self._name(wanted), member), dataclasses.astuple(ids) if ids else None)

    def join(self, wanted: JobMemory, member: Consumer) -> None:
        """Make a container a member of only this memory, and mount it. Idempotent.

        :raises SpecError: the job has memory of another size on this host
        """
        name = self._name(wanted)
        with self._locked():
            found = self._read(name) or _Record(wanted.size)
            if found.size != wanted.size and found.without(member).members:
                raise SpecError(f"the job's shared memory on this host has {found.size // MIB} MiB, and "
                                f"{wanted.size // MIB} MiB are requested: all members of a job must request the same "
                                "size")
            if found.size != wanted.size:
                self._leave(name, found, member)
                found = _Record(wanted.size)
            self._write(name, dataclasses.replace(found, members=found.members | {member}))
            with Rollback(f"mount of the memory of {member}'s job") as undo:
                undo.on_error("its record", self._restore, name, found)
                if member not in found.members:
                    undo.on_error("its view", self._mounts.unmount_memory, view_name(name, member))
                self._mounts.mount_memory(name, wanted.size)
                self._mounts.make_memory_view(view_name(name, member))
            self._leave_all_but(name, member)

    def leave(self, member: Consumer) -> None:
        """End the membership of a stopped or deleted container; unmount memory without members. Idempotent."""
        if not self._names():
            return
        with self._locked():
            self._leave_all_but(None, member)

    def of(self, member: Consumer) -> str | None:
        """Return the path of the memory that a container is a member of; None if it is a member of none."""
        return next((str(MOUNTS / name) for name, _ in self._memberships(member)), None)

    def mates(self, consumer: Consumer) -> frozenset[Consumer]:
        """Return the containers that may have received an open file from this one through a socket in shared memory.

        :raises AllocationsUnreadable: the record of a memory that it has a view of cannot be read
        """
        return frozenset(mate for _, found in self._known(consumer)
                         if consumer in found.members | found.former for mate in found.members) - {consumer}

    def first_processes(self, pid: Callable[[str], int | None], consumer: Consumer) -> frozenset[int]:
        """Return the first processes of a running container and of its running :meth:`mates`.

        :param pid: an engine's
        :raises AllocationsUnreadable, EngineError: they cannot be determined
        """
        found = set[int | None]()
        for each in {consumer} | self.mates(consumer):
            with suppress(EngineNotFound):
                found.add(pid(each.container))
        return frozenset(each for each in found if each is not None)

    def members(self) -> frozenset[Consumer]:
        return frozenset(member for name in self._names() if (found := self._read(name)) for member in found.members)

    def reconcile(self, exists: Callable[[Consumer], bool]) -> None:
        """Remove members whose container no longer exists, and mounts without members.

        :param exists: whether a container may be there: False only if the engine and the records agree
        """
        for member in self.members():
            if not exists(member):
                self.leave(member)
        self.unmount_unrecorded()

    def unmount_unrecorded(self) -> None:
        """Unmount memory without a record; a container that uses it keeps it until it ends."""
        if not any(name.startswith(self._prefix) for name in self._mounts.present_memories()):
            return
        with self._locked():
            known = {each for name in self._names() if (found := self._read(name))
                     for each in (name, *(view_name(name, member) for member in found.members))}
            for name in self._mounts.present_memories():
                if name.startswith(self._prefix) and name not in known:
                    self._mounts.unmount_memory(name)

    def _leave_all_but(self, kept: str | None, member: Consumer) -> None:
        for name, found in self._memberships(member):
            if name != kept:
                self._leave(name, found, member)

    def _memberships(self, member: Consumer) -> Iterator[tuple[str, "_Record"]]:
        return ((name, found) for name, found in self._known(member) if member in found.members)

    def _known(self, consumer: Consumer) -> Iterator[tuple[str, "_Record"]]:
        """Yield all memories and their records; an unreadable one concerns only who has a view of that memory."""
        for name in self._names():
            try:
                if found := self._read(name):
                    yield name, found
            except AllocationsUnreadable:
                if view_name(name, consumer) in self._mounts.present_memories():
                    raise

    def _leave(self, name: str, found: "_Record", member: Consumer) -> None:
        self._mounts.unmount_memory(view_name(name, member))
        kept = {each for each in (*found.former, member) if self._devices.held_by(each)}
        self._restore(name, dataclasses.replace(found.without(member), former=frozenset(kept)))

    def _restore(self, name: str, record: "_Record") -> None:
        """Mount the memory of a record; unmount memory without members."""
        if record.members:
            self._write(name, record)
            return
        self._mounts.unmount_memory(name)
        with suppress(FileNotFoundError):
            (self._directory / f"{name}{SUFFIX}").unlink()

    # Records.

    def _name(self, wanted: JobMemory) -> str:
        """Return a name that is unique among jobs, tenants and drivers, and contains no tenant text."""
        text = json.dumps([wanted.tenant, wanted.job])
        return f"{self._prefix}{hashlib.sha256(text.encode()).hexdigest()[:32]}"

    def _locked(self) -> AbstractContextManager[int]:
        return self._lock.held(AllocationsUnreadable)

    def _names(self) -> list[str]:
        try:
            found = os.listdir(self._directory)
        except FileNotFoundError:
            return []
        return sorted(name.removesuffix(SUFFIX) for name in found
                      if name.startswith(self._prefix) and name.endswith(SUFFIX))

    def _read(self, name: str) -> "_Record | None":
        file = self._directory / f"{name}{SUFFIX}"
        try:
            with Directory(self._directory) as directory:
                return _Record.parsed(json.loads(directory.read(file.name)))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise AllocationsUnreadable(f"the record {file} of a job's shared memory cannot be read ({error}): stop "
                                        "the containers of the job, then remove the file") from error

    def _write(self, name: str, record: "_Record") -> None:
        with Directory(self._directory) as directory:
            text = records.replacing(self._directory / f"{name}{SUFFIX}", record.fields(), VERSION)
            directory.write(f"{name}{SUFFIX}", f"{text}\n".encode(),
                            owner=directory.owner if os.geteuid() == 0 else None, unfinished=f"{UNFINISHED}record")


@dataclasses.dataclass(frozen=True)
class _Record:
    """Record the size in bytes and the members of a job's shared memory.

    :ivar former: former members that had devices when they left
    """

    size: int
    members: frozenset[Consumer] = frozenset()
    former: frozenset[Consumer] = frozenset()

    def without(self, member: Consumer) -> "_Record":
        return dataclasses.replace(self, members=self.members - {member})

    def fields(self) -> dict[str, Any]:
        return {"size": self.size, "members": _rows(self.members), "former": _rows(self.former)}

    @classmethod
    def parsed(cls, data: Any) -> "_Record":
        records.version(data)
        return cls(int(data["size"]), _consumers(data["members"]), _consumers(data.get("former", ())))


def _rows(consumers: Collection[Consumer]) -> list[dict[str, str]]:
    return [dataclasses.asdict(each) for each in sorted(consumers, key=lambda each: (each.container, each.uuid))]


def _consumers(rows: Any) -> frozenset[Consumer]:
    return frozenset(Consumer(**{field.name: str(row[field.name]) for field in dataclasses.fields(Consumer)})
                     for row in rows)


def view_name(memory: str, member: Consumer) -> str:
    text = json.dumps(dataclasses.astuple(member))
    return f"{memory}.{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def require_size(size: int, memory: int, asked: str) -> None:
    """Refuse shared memory that is larger than its member's memory.

    :param size, memory: bytes
    :param asked: the key or attribute that asks for it
    :raises SpecError: it is larger, or 0
    """
    if not MIB <= size <= memory:
        raise SpecError(f"{asked}={size // MIB}: shared memory takes from 1 MiB to the {memory // MIB} MiB of the "
                        "container's memory, against which it counts")
