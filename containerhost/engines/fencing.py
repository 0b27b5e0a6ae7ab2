# SPDX-License-Identifier: Apache-2.0
"""Fence a block device of a running container that no process in it uses.

A record precedes each fence, so that :func:`restore_all` can undo those of killed processes.
"""

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from containerhost.engines.spec import BlockDevice
from containerhost.errors import DeviceInUse, EngineError, HostActionFailed
from containerhost.linux import files, records
from containerhost.linux.process.processes import Process
from containerhost.privileged import Privileged

LOG = logging.getLogger(__name__)

RECORD = ".fenced"
VERSION = 3  # suffix of the records


@dataclasses.dataclass(frozen=True)
class Node:
    """Locate a container's block device node as the daemon names it.

    :ivar directory: the daemon's name for the directory of the container's nodes
    """

    container: str
    directory: str
    device: str


@dataclasses.dataclass(frozen=True)
class Fenced:
    """Record a fenced block device, so that its node can be restored after the process that fences it was killed.

    :ivar node: None in a record of a release that stored the path in the container
    """

    by: Process
    container: Process
    path: str
    number: tuple[int, int]
    mode: int
    node: Node | None = None

    @classmethod
    def parse(cls, text: str) -> "Fenced":
        """Parse a record.

        :raises ValueError, TypeError, KeyError: it is malformed
        """
        data = json.loads(text)
        records.version(data)
        major, minor = data["number"]
        return cls(Process(**data["by"]), Process(**data["container"]), str(data["path"]), (int(major), int(minor)),
                   int(data["mode"]), Node(**data["node"]) if "node" in data else None)


@contextlib.contextmanager
def fenced(root: Privileged, directory: Path, server: int, node: Node, pid: int, disk: BlockDevice, mode: int,
           others: Collection[int] = ()) -> Iterator[None]:
    """Fence the device: no process in the container can open it within the block.

    Afterwards the container's root can, if the daemon still has it for the container.

    :param directory: keeps the records
    :param server: the daemon's process
    :param pid: the container's first process
    :param mode: of the node in the container
    :param others: first processes of containers to which it may have sent the device
    :raises DeviceInUse: a process has it open, mapped or mounted; nothing was changed
    :raises HostActionFailed: the daemon has no such node, or the record cannot be written
    """
    number = number_of(disk.source)
    if number is None:
        # The host no longer has the device, so nothing can use it.
        yield
        return
    with recorded(directory, Fenced(Process.of(os.getpid()), Process.of(pid), disk.path, number, mode, node)):
        try:
            root.fence_block(server, node.directory, node.device, number)
            users = root.block_users(server, node.directory, node.device, sorted({pid, *others}), number)
            if users:
                raise DeviceInUse(f"{disk.path} is in use by {', '.join(users)}: unmount it and end these processes, "
                                  "then try again")
            yield
        finally:
            root.restore_block(server, node.directory, node.device, pid, number, mode)


@contextlib.contextmanager
def recorded(directory: Path, fenced: Fenced) -> Iterator[None]:
    """Keep a record within the block, and after a failure until the node is restored.

    :raises HostActionFailed: the record cannot be written, and the block does not run
    """
    name = hashlib.sha256(f"{fenced.container.pid} {fenced.path}".encode()).hexdigest()[:32]
    record = directory / f"{name}{RECORD}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        files.atomic_write(record, records.replacing(record, dataclasses.asdict(fenced), VERSION).encode())
    except OSError as error:
        raise HostActionFailed(f"{fenced.path} is not fenced, because that cannot be recorded: {error}") from error
    try:
        yield
    except HostActionFailed:
        raise  # the node may still be fenced
    except BaseException:
        record.unlink(missing_ok=True)
        raise
    record.unlink(missing_ok=True)


def restore_all(root: Privileged, directory: Path, await_changes: Callable[[str], int]) -> tuple[str, ...]:
    """Restore every node that a killed process left fenced, not those of live processes. Idempotent.

    :param await_changes: waits for the daemon's changes of a container, which may remove the device; returns the
        daemon's process
    :returns: complaints, one for each record that could not be used
    """
    complaints = []
    for record in sorted(directory.glob(f"*{RECORD}")):
        try:
            fenced = Fenced.parse(record.read_text(encoding="utf-8"))
            if fenced.by.lives and fenced.by != Process.of(os.getpid()):
                continue
            if fenced.container.lives:
                LOG.warning("%s was left fenced in the container of process %d: it is usable again", fenced.path,
                            fenced.container.pid)
                if (node := fenced.node) is None:
                    raise HostActionFailed("an earlier release fenced it")
                root.restore_block(await_changes(node.container), node.directory, node.device, fenced.container.pid,
                                   fenced.number, fenced.mode)
            record.unlink(missing_ok=True)
        except (HostActionFailed, EngineError, OSError, ValueError, TypeError, KeyError) as error:
            complaints.append(f"a block device may be unusable in its container until that restarts: {record}: {error}")
    return tuple(complaints)


def number_of(node: str) -> tuple[int, int] | None:
    """Return the major and minor of a device node; None if it is missing."""
    try:
        device = os.stat(node).st_rdev
    except FileNotFoundError:
        return None
    return os.major(device), os.minor(device)
