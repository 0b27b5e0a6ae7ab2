# SPDX-License-Identifier: Apache-2.0
"""Move containers from one daemon to another by LXD's own migration protocol: the receiver fetches.

The daemons do not trust each other. The sender begins an operation that waits some seconds for a client with its
secrets, which are valid for one transfer; the receiver connects by https and accepts only the sender's certificate.
Formats: LXD's rest-api document, ``POST /1.0/instances/<name>`` with ``migration`` and ``POST /1.0/instances`` with
a source of type ``migration``. The daemons negotiate how to send the files (btrfs send, zfs send, rsync).

Differences are sent between two snapshots: the last one that the receiver has, and a new one, in the order of their
names. Without a new one, and by rsync, the daemons read or send the whole container again.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

from containerhost import errors
from containerhost.engines.capabilities import ChangesOffer, Offer
from containerhost.engines.lxd import config, operations, snapshots
from containerhost.engines.lxd.client import LxdClient, document
from containerhost.engines.spec import ContainerSpec

LOG = logging.getLogger(__name__)

SENDING = "Migrating instance"  # LXD's description of the sender's operation

# Keys that the receiver's LXD needs besides the container's files: their mapping of user ids.
CARRIED = ("volatile.base_image", "volatile.last_state.idmap")
TEMPLATE = "volatile.apply_template"

SNAPSHOT = "containerhost-move-"  # prefix of the snapshots between which the differences are sent
DIFFERENTIAL_POOLS = frozenset({"btrfs", "zfs"})

# LXD 5.0.3 and Incus have this extension. LXD 5.0.2 searches the files of the running container for subvolumes, and
# fails if one disappears meanwhile; the receiver keeps the copy, but its API does not show it.
LISTS_SUBVOLUMES = "migration_vm_live"

Create = Callable[[Mapping[str, Any], int], None]


class Transfers:
    """Send stopped containers to another LXD daemon, and fetch them from one.

    :param create: creates a container from the body of ``POST /1.0/instances`` within so many seconds
    """

    def __init__(self, client: LxdClient, create: Create) -> None:
        self._client = client
        self._create = create
        self._snapshots = snapshots.Snapshots(client)

    def offer(self, name: str, address: str) -> Offer:
        instance, _ = self._client.instance(name)
        return Offer(**self._begin(instance, address, instance_only=True))

    def offer_changes(self, name: str, address: str) -> ChangesOffer | None:
        instance, _ = self._client.instance(name)
        pool_type = self._differential(instance["expanded_devices"]["root"]["pool"])
        if pool_type is None:
            return None
        self._take_snapshot(name)
        return ChangesOffer(**self._begin(instance, address, instance_only=False), pool_type=pool_type)

    def _begin(self, instance: Mapping[str, Any], address: str, instance_only: bool) -> dict[str, Any]:
        """Begin to send a container, and return the fields of its offer."""
        name = instance["name"]
        asked = f"offer container {name} to another host"
        certificate = self._client.server()["environment"]["certificate"]
        body = {"migration": True, "live": False, "instance_only": instance_only}
        operation = document(self._client.request("post", "instances", name, asked=asked, json=body), asked)["metadata"]
        return {"name": name, "operation": f"{address}/1.0/operations/{operation['id']}", "certificate": certificate,
                "architecture": instance["architecture"], "config": carried(instance["config"]),
                "secrets": operation["metadata"]}

    def _differential(self, pool: str) -> str | None:
        """Return the type of a pool that can send and receive differences; None for other types."""
        driver = str(self._client.pool(pool)["driver"])
        return driver if driver in DIFFERENTIAL_POOLS and LISTS_SUBVOLUMES in self._client.extensions else None

    def _take_snapshot(self, name: str) -> None:
        """Take the next snapshot. Former ones, which the receiver has, stay: their removal would lengthen the stop."""
        former = [found for found in self._snapshots.names(name) if found.startswith(SNAPSHOT)]
        number = int(former[-1].removeprefix(SNAPSHOT)) + 1 if former else 1
        snapshots.request(self._client, name, f"{SNAPSHOT}{number:06}", f"take a snapshot of container {name}")

    def withdraw(self, name: str) -> None:
        end(self._client, f"container {name}", lambda operation: sends(operation, name))
        self._delete_snapshots(name, SNAPSHOT)

    def purge(self, names: Collection[str]) -> None:
        for instance in self._client.instances_with_states():
            taken = (snapshot["name"].rpartition("/")[2] for snapshot in instance.get("snapshots") or ())
            if instance["name"] in names and any(name.startswith(SNAPSHOT) for name in taken):
                self.withdraw(instance["name"])

    def fetch(self, spec: ContainerSpec, offer: Offer, timeout: int) -> None:
        self._create(instance(spec, offer, self._client.extensions), timeout)
        self._keep_files(spec.name)

    def takes_changes(self, spec: ContainerSpec, offer: ChangesOffer) -> bool:
        return self._differential(spec.root.pool) == offer.pool_type

    def fetch_changes(self, spec: ContainerSpec, offer: ChangesOffer, timeout: int, refresh: bool) -> None:
        body = instance(spec, offer, self._client.extensions)
        body["source"] |= {"instance_only": False, "refresh": refresh}
        # The result of a refresh must be known: unlike after a creation, the container's existence proves nothing.
        (self._client.create_instance if refresh else self._create)(body, timeout)
        self._keep_files(spec.name)

    def drop_snapshots(self, name: str) -> None:
        self._delete_snapshots(name, "")

    def _delete_snapshots(self, name: str, prefix: str) -> None:
        try:
            self._snapshots.delete_all(name, prefix)
        except errors.EngineError as error:
            LOG.warning("Snapshots %s* of container %s stay until it leaves again, or its driver starts: %s", SNAPSHOT,
                        name, error)

    def _keep_files(self, name: str) -> None:
        """Keep LXD from changing the files: at the first start of a copy it would write a new host name."""
        instance, etag = self._client.instance(name)
        if instance["config"].pop(TEMPLATE, None) is not None:
            self._client.replace_instance(name, instance, etag)


def end(client: LxdClient, what: str, sends: Callable[[Mapping[str, Any]], bool]) -> None:
    """Cancel the transfers of ``what``: LXD's running operations that ``sends`` matches."""
    for operation in client.operations():
        if operation["status_code"] < 200 and sends(operation):
            LOG.info("The transfer of %s is cancelled", what)
            try:
                client.request("delete", "operations", operation["id"], asked=f"end the transfer of {what}")
            except errors.EngineError as error:
                # It has ended, or LXD can no longer cancel it: the receiver removes the copy.
                LOG.info("The transfer of %s was not cancelled: %s", what, error)


def carried(configuration: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in configuration.items() if key in CARRIED or key.startswith("image.")}


def instance(spec: ContainerSpec, offer: Offer, extensions: frozenset[str]) -> dict[str, Any]:
    """Return the body of ``POST /1.0/instances`` that fetches ``offer``."""
    body = config.instance(spec, extensions)
    return body | {
        "architecture": offer.architecture,
        "config": {**carried(offer.config), **body["config"]},  # no other key, because the sender is not trusted
        "source": {"type": "migration", "mode": "pull", "operation": offer.operation, "live": False,
                   "instance_only": True, "certificate": offer.certificate, "secrets": dict(offer.secrets)},
    }


def sends(operation: Mapping[str, Any], name: str) -> bool:
    """Return whether an operation of LXD sends the container ``name`` to another daemon."""
    return operation.get("description") == SENDING and operations.concerns(operation, name)
