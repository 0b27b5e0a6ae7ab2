# SPDX-License-Identifier: Apache-2.0
"""Record the devices of a container on Docker in a small file that the runtime reads at each start.

Docker fixes a container's devices at its creation; the record may change. It is written atomically, and holds only
names and numbers.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from containerhost.engines.docker import recordfiles
from containerhost.errors import EngineError
from containerhost.linux import records
from containerhost.linux.files import UNFINISHED, atomic_write
from containerhost.linux.network.ipconfig import IpConfig

DIRECTORY = Path(recordfiles.DIRECTORY)
VERSION = 2  # of the files


@dataclasses.dataclass(frozen=True, order=True)
class Node:
    """Identify a character node, at the same path on the host and in the container."""

    path: str
    major: int
    minor: int

    @property
    def number(self) -> tuple[int, int]:
        return self.major, self.minor


@dataclasses.dataclass(frozen=True, order=True)
class Netdev:
    """Describe a network interface that is moved from the host into a container.

    :ivar host_name: its name on the host, restored when it returns
    :ivar setup: its configuration in the container; ignored in comparisons
    """

    host_name: str
    name: str
    setup: IpConfig | None = dataclasses.field(default=None, compare=False)


@dataclasses.dataclass(frozen=True)
class Record:
    """Hold the devices, interfaces, cores and labels of one container on Docker, as its file records them.

    :ivar devices: ids of the devices that the nodes and interfaces belong to
    :ivar libraries: capabilities of a GPU's driver whose libraries come in when it starts
    :ivar volumes_in_root: the volumes of its image are directories of its root; False for a container that an
        earlier version created, whose data is in Docker's anonymous volumes
    :ivar container: its name; empty in records of earlier versions
    :ivar labels: the driver's labels if they have changed, because Docker fixes those of the creation; otherwise
        None
    """

    devices: frozenset[str] = frozenset()
    nodes: frozenset[Node] = frozenset()
    netdevs: frozenset[Netdev] = frozenset()
    libraries: frozenset[str] = frozenset()
    volumes_in_root: bool = False
    container: str = ""
    cores: frozenset[int] = frozenset()
    labels: Mapping[str, str] | None = None

    def called_here(self, other: "Record") -> "Record":
        """Return ``other`` with the present names of its interfaces in this container."""
        names = {netdev.host_name: netdev for netdev in (*other.netdevs, *self.netdevs)}
        return dataclasses.replace(other, netdevs=frozenset(names[netdev.host_name] for netdev in other.netdevs))

    def __or__(self, other: "Record") -> "Record":
        """Merge two records; for an interface in both, the other's setup counts."""
        return Record(self.devices | other.devices, self.nodes | other.nodes,
                      other.netdevs | (self.netdevs - other.netdevs), self.libraries | other.libraries,
                      self.volumes_in_root or other.volumes_in_root, self.container or other.container,
                      self.cores | other.cores, self.labels if other.labels is None else other.labels)

    def __sub__(self, other: "Record") -> "Record":
        """Return the record without another's parts; libraries stay as long as the container runs."""
        return Record(self.devices - other.devices, self.nodes - other.nodes, self.netdevs - other.netdevs,
                      self.libraries, self.volumes_in_root, self.container, self.cores, self.labels)

    def fields(self) -> dict[str, Any]:
        """Return the record's fields as JSON values."""
        return {"devices": sorted(self.devices),
                "nodes": [dataclasses.asdict(node) for node in sorted(self.nodes)],
                "netdevs": [{"host_name": netdev.host_name, "name": netdev.name,
                             "setup": netdev.setup and netdev.setup._asdict()} for netdev in sorted(self.netdevs)],
                "libraries": sorted(self.libraries), "volumes_in_root": self.volumes_in_root,
                "container": self.container, "cores": sorted(self.cores),
                "labels": None if self.labels is None else dict(self.labels)}


class Records:
    """Keep the records in one directory, by Docker's id of the container."""

    def __init__(self, directory: Path = DIRECTORY) -> None:
        self.directory = directory

    def read(self, container: str) -> Record:
        """Read a container's record.

        :raises EngineNotFound: there is none
        :raises EngineError: it cannot be read
        """
        data = recordfiles.data(str(self.directory), container)
        try:
            return parsed(data)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise recordfiles.untrusted(str(self._path(container)), error) from error

    def write(self, container: str, record: Record) -> None:
        """Write a container's record; the caller holds its lock, or created the container.

        :raises EngineError: it cannot be written
        """
        path = self._path(container)
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            atomic_write(path, f"{records.replacing(path, record.fields(), VERSION)}\n".encode(),
                         unfinished=self._unfinished(container).name)
        except OSError as error:
            raise EngineError(f"record {path} of what the container has cannot be written: {error}") from error

    def remove(self, container: str) -> None:
        """Remove a container's record, and the remains of a killed writer."""
        self._path(container).unlink(missing_ok=True)
        self._unfinished(container).unlink(missing_ok=True)

    def ids(self) -> tuple[str, ...]:
        """Return the ids of the containers with a record."""
        return tuple(sorted(path.stem for path in self.directory.glob("*.json") if recordfiles.is_id(path.stem)))

    def _unfinished(self, container: str) -> Path:
        return self.directory / f"{UNFINISHED}{container}"

    def _path(self, container: str) -> Path:
        return Path(recordfiles.path(str(self.directory), container))


def parsed(data: Any) -> Record:
    records.version(data)
    return Record(frozenset(map(str, data["devices"])),
                  frozenset(Node(str(node["path"]), int(node["major"]), int(node["minor"])) for node in data["nodes"]),
                  frozenset(Netdev(str(item["host_name"]), str(item["name"]), recordfiles.ip_config(item.get("setup")))
                            for item in data["netdevs"]), frozenset(map(str, data.get("libraries", ()))),
                  bool(data.get("volumes_in_root", False)), str(data.get("container", "")),
                  frozenset(map(int, data.get("cores", ()))), labels(data.get("labels")))


def labels(data: Any) -> dict[str, str] | None:
    return None if data is None else {str(key): str(value) for key, value in data.items()}


def union(parts: Iterable[Record]) -> Record:
    result = Record()
    for part in parts:
        result |= part
    return result
