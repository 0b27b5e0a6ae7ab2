# SPDX-License-Identifier: Apache-2.0
"""Create containers so that no two of them get the same user and group ids of the host.

LXD chooses an id range for an isolated container that its database shows as free, but stores the choice later:
containers created concurrently may get the same range, and lose their isolation from each other (seen with LXD 5.0).
So all creations on a host are serialized until each has its range; the long part, unpacking the image, runs in
parallel.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from containerhost import errors
from containerhost.engines.lxd import operations
from containerhost.engines.lxd.client import LxdClient
from containerhost.linux.lock import FileLock
from containerhost.linux.poll import wait_until

LOCK = ".creation"
RANGE = "volatile.idmap.base"
ENDED = 200  # the lowest status code of a finished operation
POLL_INTERVAL = 0.008  # s between two polls of the range, and before the first; LXD takes at least as long


class SerializedCreate:
    """Serialize the creation of LXD containers until each has its own range of user and group ids."""

    def __init__(self, client: LxdClient, locks: Path) -> None:
        self._client = client
        self._lock = FileLock(locks / LOCK, client.settings.operation_timeout)

    def create(self, body: Mapping[str, Any], timeout: int | None = None) -> None:
        """Create a container.

        :param timeout: seconds it may take once it has begun; None is the daemon's ``operation_timeout``
        :raises EngineTimeout: this creation, or an earlier one, does not progress
        """
        daemon = self._client.daemon
        try:
            self._create(body, timeout)
        except errors.OperationForgotten:
            # LXD removes an instance that it failed to create, unless it was killed meanwhile.
            if self._client.server()["environment"]["server_pid"] != daemon or not self._is_made(body["name"]):
                raise

    def _is_made(self, name: str) -> bool:
        try:
            self._client.instance(name)
        except errors.EngineNotFound:
            return False
        return not any(operation["status_code"] < ENDED and operations.creates(operation, name)
                       for operation in self._client.operations())

    def _create(self, body: Mapping[str, Any], timeout: int | None) -> None:
        if body["config"].get("security.idmap.isolated") != "true":
            self._client.create_instance(body, timeout)
            return
        asked = f"create container {body['name']}"
        try:
            with self._lock.held():
                operation = self._client.begin_creation(body)
                self._await_range(body["name"], operation)
        except TimeoutError as error:
            raise errors.EngineTimeout(f"{asked}: timed out waiting for other creations: {error}") from error
        except OSError as error:
            raise errors.EngineError(f"{asked}: its lock cannot be taken: {error}") from error
        self._client.wait(operation, asked, timeout)

    def _await_range(self, name: str, operation: Mapping[str, Any]) -> None:
        """Wait until the container has its range, or its creation has succeeded or failed."""
        time.sleep(POLL_INTERVAL)
        wait_until(lambda: self._has_range(name) or self._client.is_over(operation),
                   self._client.settings.operation_timeout, POLL_INTERVAL)

    def _has_range(self, name: str) -> bool:
        try:
            instance, _ = self._client.instance(name)
        except errors.EngineNotFound:
            return False
        return bool(instance["config"].get(RANGE))
