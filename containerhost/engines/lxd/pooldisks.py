# SPDX-License-Identifier: Apache-2.0
"""Manage further disks of a storage pool: LXD's custom volumes, each a file system with a size."""

from collections.abc import Mapping
from typing import Any

from containerhost import errors
from containerhost.engines.capabilities import Disk
from containerhost.engines.lxd.client import LxdClient


class PoolDisks:
    def __init__(self, client: LxdClient, pool: str) -> None:
        self._client = client
        self.pool = pool

    def all(self) -> tuple[Disk, ...]:
        found = self._client.get(*self._path(), asked=f"list the disks of storage pool {self.pool}",
                                 params={"recursion": "1"})
        return tuple(disk(volume) for volume in found)

    def ensure(self, name: str, size: int, labels: Mapping[str, str]) -> None:
        present = next((disk for disk in self.all() if disk.name == name), None)
        if present is None:
            self._create(name, size, labels)
        elif present.labels != labels:
            raise errors.EngineConflict(f"storage pool {self.pool} has a disk {name} that this driver did not create")
        elif present.size < size:
            self.resize(name, size)

    def resize(self, name: str, size: int) -> None:
        self._write("patch", {"config": {"size": str(size)}}, f"change the size of disk {name} to {size} bytes", name)

    def _create(self, name: str, size: int, labels: Mapping[str, str]) -> None:
        config = {"size": str(size)} | {f"user.{key}": value for key, value in labels.items()}
        self._write("post", {"name": name, "config": config}, f"make disk {name} of {size} bytes")

    def delete(self, name: str) -> None:
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
