# SPDX-License-Identifier: Apache-2.0
"""Manage further disks of a storage pool: LXD's custom volumes, each a file system with a size."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from containerhost import errors
from containerhost.engines.lxd.client import LxdClient


@dataclasses.dataclass(frozen=True)
class Disk:
    """:ivar size: bytes; 0 where none was asked for
    :ivar labels: the marks it was made with
    :ivar used: a container has it in its configuration
    """

    name: str
    size: int
    labels: Mapping[str, str]
    used: bool


class PoolDisks:
    def __init__(self, client: LxdClient, pool: str) -> None:
        self._client = client
        self.pool = pool

    def all(self) -> tuple[Disk, ...]:
        found = self._client.get(*self._path(), asked=f"list the disks of storage pool {self.pool}",
                                 params={"recursion": "1"})
        return tuple(disk(volume) for volume in found)

    def ensure(self, name: str, size: int, labels: Mapping[str, str]) -> None:
        """Make the disk; one with the same labels that is there already keeps its content, and grows if it is smaller.

        :param size: bytes
        :raises StorageFull:
        :raises EngineConflict: there is one of that name with other labels
        """
        present = next((disk for disk in self.all() if disk.name == name), None)
        if present is None:
            self._create(name, size, labels)
        elif present.labels != labels:
            raise errors.EngineConflict(f"storage pool {self.pool} has a disk {name} that is somebody else's")
        elif present.size < size:
            self.resize(name, size)

    def resize(self, name: str, size: int) -> None:
        """Give the disk another size; its content stays.

        :param size: bytes
        :raises EngineError: the pool's type cannot, or there is more on the disk
        """
        self._write("patch", {"config": {"size": str(size)}}, f"change the size of disk {name} to {size} bytes", name)

    def _create(self, name: str, size: int, labels: Mapping[str, str]) -> None:
        config = {"size": str(size)} | {f"user.{key}": value for key, value in labels.items()}
        self._write("post", {"name": name, "config": config}, f"make disk {name} of {size} bytes")

    def delete(self, name: str) -> None:
        """Delete a disk. Idempotent.

        :raises EngineError: a container has it
        """
        asked = f"delete disk {name}"
        try:
            self._client.finish(self._client.request("delete", *self._path(), name, asked=asked), asked)
        except errors.EngineNotFound:
            return

    def _write(self, method: str, body: Mapping[str, object], asked: str, *name: str) -> None:
        asked = f"{asked} in storage pool {self.pool}"
        self._client.finish(self._client.request(method, *self._path(), *name, asked=asked, json=body), asked)

    def _path(self) -> tuple[str, ...]:
        return ("storage-pools", self.pool, "volumes", "custom")


def disk(volume: Mapping[str, Any]) -> Disk:
    """Return a disk from LXD's description of a volume."""
    config = volume["config"]
    return Disk(
        name=volume["name"],
        size=int(config.get("size") or 0),
        labels={key.removeprefix("user."): value for key, value in config.items() if key.startswith("user.")},
        used=bool(volume.get("used_by")))
