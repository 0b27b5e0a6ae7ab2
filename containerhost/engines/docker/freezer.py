"""Freezing containers, also where Docker was killed between the kernel's freeze and its own record of it.

Docker then says that the container runs, and refuses to pause it (it is paused) and to unpause it (it is not).
"""

from collections.abc import Mapping
from typing import Any

from containerhost.engines.docker import frozen
from containerhost.engines.docker.client import DockerClient
from containerhost.engines.docker.privileged import DockerPrivileged
from containerhost.sysfs import Host


class Freezer:
    def __init__(self, client: DockerClient, privileged: DockerPrivileged, host: Host) -> None:
        self._client = client
        self._privileged = privileged
        self._host = host

    def freeze(self, name: str) -> None:
        """Done already when Docker says that it is frozen."""
        container = self._client.container(name)
        if container["State"]["Status"] != "paused":
            self.thaw_unrecorded(container)
            self._client.pause(name)

    def unfreeze(self, name: str) -> None:
        """Done already when it runs."""
        container = self._client.container(name)
        if container["State"]["Status"] == "running":
            self.thaw_unrecorded(container)
        else:
            self._client.unpause(name)

    def thaw_unrecorded(self, container: Mapping[str, Any]) -> None:
        """Let a container run of which Docker says that it does.

        :param container: as Docker describes it
        """
        if container["State"]["Status"] == "running" and frozen.is_frozen(self._host, container["Id"]):
            self._privileged.thaw(container["Id"])

