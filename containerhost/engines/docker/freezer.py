# SPDX-License-Identifier: Apache-2.0
"""Freeze containers, also where Docker was killed between the kernel's freeze and its own record of it.

Docker then reports the container as running, and refuses both to pause it (it is paused) and to unpause it (it is
not).
"""

import contextlib
import logging
from collections.abc import Iterator

from containerhost.engines.docker import frozen
from containerhost.engines.docker.client import DockerClient
from containerhost.engines.docker.privileged import DockerPrivileged
from containerhost.errors import EngineTimeout
from containerhost.linux.sysfs import Host

LOG = logging.getLogger(__name__)


class Freezer:
    """Freeze and unfreeze containers, and repair freezes that Docker does not know of."""

    def __init__(self, client: DockerClient, privileged: DockerPrivileged, host: Host) -> None:
        self._client = client
        self._privileged = privileged
        self._host = host

    def freeze(self, name: str) -> None:
        """Freeze a running container."""
        with self._thawed(name) as (container, status):
            if status != "paused":
                self._client.pause(container)

    def unfreeze(self, name: str) -> None:
        """Unfreeze a container."""
        with self._thawed(name) as (container, status):
            if status != "running":
                self._client.unpause(container)

    def thaw_unrecorded(self, name: str) -> None:
        """Thaw a frozen container that Docker reports as running."""
        with self._thawed(name):
            return

    def thaw_abandoned(self, container: str) -> None:
        """Thaw a container that only the kernel has frozen, unless another process freezes or thaws it.

        :param container: Docker's id
        """
        if not frozen.is_frozen(self._host, container):
            return
        try:
            with frozen.locked(self._host, container, 0):
                self._thaw_unrecorded(container)
        except EngineTimeout:
            LOG.debug("Container %s stays frozen: its root is being copied", container[:12])

    @contextlib.contextmanager
    def _thawed(self, name: str) -> Iterator[tuple[str, str]]:
        """Thaw a container frozen without Docker's knowledge, and exclude other freezes and thaws within the block.

        :returns: Docker's id and status
        """
        container = str(self._client.container(name)["Id"])
        with frozen.locked(self._host, container, self._client.settings.operation_timeout):
            yield container, self._thaw_unrecorded(container)

    def _thaw_unrecorded(self, container: str) -> str:
        """Thaw a container that Docker reports as running.

        :returns: Docker's status of the container
        """
        # With the freezer's lock held, no other freeze by Docker is in progress.
        status = str(self._client.container(container)["State"]["Status"])
        if status == "running" and frozen.is_frozen(self._host, container):
            # An administrator's `docker pause` may be in progress: Docker responds after it.
            status = str(self._client.container(container)["State"]["Status"])
            if status == "running":
                self._privileged.thaw(container)
        return status
