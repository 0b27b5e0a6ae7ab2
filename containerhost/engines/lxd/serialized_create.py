# SPDX-License-Identifier: Apache-2.0
"""Create containers so that no two of them are given the same user and group ids of the host.

LXD chooses the id range of an isolated container from those that its database shows taken, and writes the choice down
only later: containers made at the same time get one range, and so does one break-out (seen with LXD 5.0). So the
creations of a host, whichever process asks for them, follow one another until each has its range; the long part,
unpacking the image, goes on side by side.
"""

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
ENDED = 200  # the least status of an operation that has ended
POLL_INTERVAL = 0.004  # s between two looks for the range


class SerializedCreate:
    """Create LXD containers one after another until each has its own range of user and group ids.

    :param locks: a directory that every process which makes containers on this host shares
    """

    def __init__(self, client: LxdClient, locks: Path) -> None:
        self._client = client
        self._lock = FileLock(locks / LOCK, client.settings.operation_timeout)

    def create(self, body: Mapping[str, Any], timeout: int | None = None) -> None:
        """Make a container.

        :param body: of ``POST /1.0/instances``
        :param timeout: seconds it may take once it has begun; None is the daemon's ``operation_timeout``
        :raises EngineTimeout: other creations, or this one, do not get on
        """
        daemon = self._daemon()
        try:
            self._create(body, timeout)
        except errors.OperationForgotten:
            # LXD removes what it cannot make, but not when it is killed meanwhile.
            if self._daemon() != daemon or not self._is_made(body["name"]):
                raise

    def _daemon(self) -> Any:
        return self._client.server()["environment"]["server_pid"]

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
            raise errors.EngineTimeout(f"{asked}: no turn to begin: {error}") from error
        except OSError as error:
            raise errors.EngineError(f"{asked}: its turn cannot be arranged: {error}") from error
        self._client.wait(operation, asked, timeout)

    def _await_range(self, name: str, operation: Mapping[str, Any]) -> None:
        """Wait until the container has its range, or its creation has ended, well or not."""
        wait_until(lambda: self._has_range(name) or self._client.is_over(operation),
                   self._client.settings.operation_timeout, POLL_INTERVAL)

    def _has_range(self, name: str) -> bool:
        try:
            instance, _ = self._client.instance(name)
        except errors.EngineNotFound:
            return False
        return bool(instance["config"].get(RANGE))
