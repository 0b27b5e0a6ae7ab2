# SPDX-License-Identifier: Apache-2.0
"""Record which volumes are connected for which server, in one file each in the server's directory.

A file is written before its volume is connected, so that the remains of a killed driver can be found and
disconnected. It may contain the backend's secrets: only nova-compute and root may read it.
"""

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from oslo_log import log as logging

from containerhost.linux import records
from containerhost.linux.files import atomic_write
from nova_lxd_ext.storage import directories

LOG = logging.getLogger(__name__)

DIRECTORY = "volumes"
VERSION = 2  # version of the files
ID = re.compile(r"[0-9A-Za-z-]{1,64}")


@dataclasses.dataclass(frozen=True)
class Connection:
    """Record the connection of one volume to this host for a server.

    :ivar data: os-brick's input
    :ivar device: os-brick's result; None before it has answered
    """

    volume: str
    kind: str
    data: Mapping[str, Any] = dataclasses.field(repr=False)
    path: str
    device: Mapping[str, Any] | None = None

    @property
    def source(self) -> str:
        """Return the volume's node on the host; empty if there is none."""
        return os.path.realpath(self.device["path"]) if self.device else ""


def keep(server: str, connection: Connection) -> None:
    """Store the connection atomically.

    :raises OSError: it cannot be stored
    """
    directory = directories.make(server) / DIRECTORY
    directory.mkdir(mode=0o700, exist_ok=True)
    target = directory / _name(connection.volume)
    atomic_write(target, records.replacing(target, dataclasses.asdict(connection), VERSION).encode())


def forget(server: str, volume: str) -> None:
    _file(server, volume).unlink(missing_ok=True)


def find(server: str, volume: str) -> Connection | None:
    return _read(_file(server, volume))


def of(server: str) -> tuple[Connection, ...]:
    """Return all connections of a server, by volume."""
    return tuple(connection for file in sorted((directories.of(server) / DIRECTORY).glob("*.json"))
                 if (connection := _read(file)))


def servers() -> Iterator[str]:
    """Return the servers of this host for which volumes are, or were, connected."""
    return (server for server in directories.all_uuids() if (directories.of(server) / DIRECTORY).is_dir())


def others(server: str, volume: str) -> tuple[str, ...]:
    """Return the other servers of this host for which the same volume is connected."""
    return tuple(other for other in servers() if other != server and _file(other, volume).exists())


def _file(server: str, volume: str) -> Path:
    return directories.of(server) / DIRECTORY / _name(volume)


def _name(volume: str) -> str:
    if not ID.fullmatch(volume):
        raise ValueError(f"invalid volume ID: {volume!r}")
    return f"{volume}.json"


def _read(file: Path) -> Connection | None:
    try:
        return records.parsed(Connection, file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        LOG.error("The record of a volume's connection, %s, cannot be read (%s): its volume may stay connected",
                  file, error)
        return None
