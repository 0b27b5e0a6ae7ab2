# SPDX-License-Identifier: Apache-2.0
"""Manage snapshots of a container's root disk that stay in LXD's pool (LXD's rest-api document, ``/snapshots``).

LXD's snapshots also hold the container's configuration and devices of that time; whoever restores one brings both up to
date afterwards (``LxdEngine.reconfigure``), because devices may belong to somebody else by now.
"""

from containerhost.engines.lxd.client import LxdClient
from containerhost.errors import EngineNotFound


class Snapshots:
    def __init__(self, client: LxdClient) -> None:
        self._client = client

    def names(self, container: str) -> tuple[str, ...]:
        urls = self._client.get("instances", container, "snapshots", asked=f"list the snapshots of {container}")
        return tuple(sorted(url.partition("?")[0].rpartition("/")[2] for url in urls))

    def create(self, container: str, name: str) -> None:
        asked = f"make snapshot {name} of container {container}"
        body = {"name": name, "stateful": False}
        self._client.finish(self._client.request("post", "instances", container, "snapshots", asked=asked, json=body),
                            asked)

    def restore(self, container: str, name: str) -> None:
        asked = f"restore snapshot {name} of container {container}"
        self._client.finish(self._client.request("put", "instances", container, asked=asked, json={"restore": name}),
                            asked)

    def delete(self, container: str, name: str) -> None:
        asked = f"delete snapshot {name} of container {container}"
        try:
            self._client.finish(self._client.request("delete", "instances", container, "snapshots", name, asked=asked),
                                asked)
        except EngineNotFound:
            return
