# SPDX-License-Identifier: Apache-2.0
"""Move disks of a storage pool from one daemon to another as :mod:`~containerhost.engines.lxd.migration` does.

Formats: LXD's rest-api document, ``POST /1.0/storage-pools/<pool>/volumes/custom/<name>`` with ``migration`` and
``POST …/volumes/custom`` with a source of type ``migration``.
"""

from collections.abc import Mapping
from typing import Any

from containerhost.engines.capabilities import DiskOffer
from containerhost.engines.lxd import operations
from containerhost.engines.lxd.client import LxdClient, document
from containerhost.engines.lxd.migration import end

SENDING = "Migrating storage volume"  # LXD's description of the sender's operation

# Keys that the receiver's LXD needs besides the disk's files: their mapping of user ids.
CARRIED = ("size", "volatile.idmap.last")


class DiskTransfers:
    """Send custom volumes of a storage pool to another LXD daemon, and fetch them from one."""

    def __init__(self, client: LxdClient, pool: str) -> None:
        self._client = client
        self._pool = pool

    def offer(self, name: str, address: str) -> DiskOffer:
        asked = f"offer disk {name} to another host"
        config = self._client.get(*self._path(), name, asked=asked)["config"]
        certificate = self._client.server()["environment"]["certificate"]
        body = {"name": name, "migration": True, "volume_only": True}
        operation = document(self._client.request("post", *self._path(), name, asked=asked, json=body),
                             asked)["metadata"]
        return DiskOffer(name=name, operation=f"{address}/1.0/operations/{operation['id']}", certificate=certificate,
                         config={key: config[key] for key in CARRIED if key in config}, secrets=operation["metadata"])

    def withdraw(self, name: str) -> None:
        end(self._client, f"disk {name}", lambda operation: sends(operation, name))

    def fetch(self, offer: DiskOffer, labels: Mapping[str, str], timeout: int) -> None:
        asked = f"fetch disk {offer.name} into storage pool {self._pool}"
        self._client.finish(self._client.request("post", *self._path(), asked=asked, json=body(offer, labels)), asked,
                            timeout)

    def _path(self) -> tuple[str, ...]:
        return ("storage-pools", self._pool, "volumes", "custom")


def body(offer: DiskOffer, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the body of the request that fetches ``offer``."""
    return {
        "name": offer.name,
        "config": dict(offer.config) | {f"user.{key}": value for key, value in labels.items()},
        "source": {"type": "migration", "mode": "pull", "operation": offer.operation, "volume_only": True,
                   "certificate": offer.certificate, "secrets": dict(offer.secrets)},
    }


def sends(operation: Mapping[str, Any], name: str) -> bool:
    """Return whether an operation of LXD sends the disk ``name`` to another daemon."""
    return operation.get("description") == SENDING and operations.concerns(operation, name, ["storage_volumes"])
