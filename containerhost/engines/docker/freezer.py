"""Freezing containers, also where Docker was killed between the kernel's freeze and its own record of it.

Docker then says that the container runs, and refuses to pause it (it is paused) and to unpause it (it is not).
"""

from containerhost.engines.docker import frozen
from containerhost.engines.docker.client import DockerClient
from containerhost.engines.docker.privileged import DockerPrivileged
from containerhost.sysfs import Host


class Freezer:
    """Freeze and unfreeze containers, and repair what Docker does not know of them."""

    def __init__(self, client: DockerClient, privileged: DockerPrivileged, host: Host) -> None:
        self._client = client
        self._privileged = privileged
        self._host = host

    def freeze(self, name: str) -> None:
        """Freeze a container that is not frozen."""
        if self.thaw_unrecorded(name) != "paused":
            self._client.pause(name)

    def unfreeze(self, name: str) -> None:
        """Let a container run."""
        if self.thaw_unrecorded(name) != "running":
            self._client.unpause(name)

    def thaw_unrecorded(self, name: str) -> str:
        """Let a container run of which Docker says that it does.

        :returns: its status in Docker's words
        """
        container = self._client.container(name)
        if container["State"]["Status"] == "running" and frozen.is_frozen(self._host, container["Id"]):
            # Another request may be freezing it: Docker answers after that.
            container = self._client.container(container["Id"])
            if container["State"]["Status"] == "running":
                self._privileged.thaw(container["Id"])
        return str(container["State"]["Status"])
