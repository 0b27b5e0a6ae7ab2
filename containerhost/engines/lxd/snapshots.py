# SPDX-License-Identifier: Apache-2.0
"""Manage snapshots of a container's root disk that stay in LXD's pool (LXD's rest-api document, ``/snapshots``).

LXD's snapshots also hold the container's configuration and devices of that time; a restore updates both afterwards
(``LxdEngine.reconfigure``), because other containers may have the devices now.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from containerhost.engines.contract import Status
from containerhost.engines.lxd import operations
from containerhost.engines.lxd.client import LxdClient
from containerhost.engines.lxd.states import STATUSES
from containerhost.errors import EngineError, EngineNotFound, EngineTimeout, EngineUnavailable
from containerhost.linux.poll import retry

BUSY_TIMEOUT = 30  # s for which another operation may use a snapshot
RESTART_TIMEOUT = 60  # s for a restart of the daemon
POLL_INTERVAL = 1  # s

SEARCHED_POOLS = frozenset({"btrfs"})
"""Drivers that search a container's directories for subvolumes. LXD 5.0.2 fails over a file that goes meanwhile, and
leaves a subvolume that its API does not show: the container cannot be deleted any more."""


class Snapshots:
    def __init__(self, client: LxdClient) -> None:
        self._client = client

    def names(self, container: str) -> tuple[str, ...]:
        urls = self._client.get("instances", container, "snapshots", asked=f"list the snapshots of {container}")
        return tuple(sorted(url.partition("?")[0].rpartition("/")[2] for url in urls))

    def create(self, container: str, name: str) -> None:
        asked = f"make snapshot {name} of container {container}"
        instance, _ = self._client.instance(container)
        take(self._client, instance, name, asked)

    def restore(self, container: str, name: str) -> None:
        asked = f"restore snapshot {name} of container {container}"
        self._client.finish(self._client.request("put", "instances", container, asked=asked, json={"restore": name}),
                            asked)

    def delete(self, container: str, name: str, patience: float = 0) -> None:
        """Delete a snapshot. Idempotent.

        LXD itself continues a deletion whose caller was killed, and concurrent ones make each other fail.

        :param patience: seconds to wait for another deletion
        """
        asked = f"delete snapshot {name} of container {container}"

        def delete() -> None:
            self._client.finish(self._client.request("delete", "instances", container, "snapshots", name, asked=asked),
                                asked)

        with contextlib.suppress(EngineNotFound):
            retry(delete, EngineError, patience, POLL_INTERVAL,
                  lambda error: isinstance(error, EngineTimeout | EngineNotFound))

    def delete_all(self, container: str, prefix: str = "") -> None:
        """Delete the snapshots whose names have this prefix, with retries. Idempotent."""
        with contextlib.suppress(EngineNotFound):
            for name in self.names(container):
                if name.startswith(prefix):
                    self.delete(container, name, BUSY_TIMEOUT)


def take(client: LxdClient, instance: Mapping[str, Any], snapshot: str, asked: str, timeout: int | None = None) -> None:
    """Take a snapshot; a running container in a pool that copies files is frozen meanwhile.

    If this process is killed meanwhile, the container stays frozen until its driver resumes it.

    :param timeout: seconds the engine may take
    """
    name = instance["name"]
    pool = instance["expanded_devices"].get("root", {}).get("pool")
    searched = pool and client.pool(pool)["driver"] in SEARCHED_POOLS
    with contextlib.ExitStack() as stack:
        if searched and STATUSES.get(instance["status_code"]) is Status.RUNNING:
            stack.enter_context(_frozen(client, name))
        request(client, name, snapshot, asked, timeout)


def request(client: LxdClient, container: str, snapshot: str, asked: str, timeout: int | None = None) -> None:
    """Request a snapshot of a container in its present state from LXD.

    :param timeout: seconds the engine may take
    """
    client.finish(client.request("post", "instances", container, "snapshots", asked=asked,
                                 json={"name": snapshot, "stateful": False}), asked, timeout)


@contextlib.contextmanager
def _frozen(client: LxdClient, name: str) -> Iterator[None]:
    """Freeze a container within the block; afterwards it runs, even if the daemon restarted."""
    try:
        client.set_state(name, "freeze")
        yield
    finally:
        retry(lambda: _unfreeze(client, name), EngineUnavailable, RESTART_TIMEOUT, POLL_INTERVAL)


def _unfreeze(client: LxdClient, name: str) -> None:
    """Unfreeze a container, also after a freeze that LXD carries out later than its timeout.

    Idempotent: does nothing if the container runs, or was deleted."""
    with contextlib.suppress(EngineNotFound):
        try:
            client.set_state(name, "unfreeze")
        except EngineUnavailable:
            raise
        except EngineError:
            operations.wait(client, name, operations.changes)
            if STATUSES.get(client.instance(name)[0]["status_code"]) is Status.FROZEN:
                client.set_state(name, "unfreeze")
