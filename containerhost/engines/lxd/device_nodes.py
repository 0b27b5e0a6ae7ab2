# SPDX-License-Identifier: Apache-2.0
"""Revoke from a tenant what would outlast, or block, the detachment of a device from its running container.

LXD unlinks a node, but a bind mount in the container keeps its inode, and writes no device rules for unprivileged
containers: the tenant could open the device for as long as the container runs, even when others have it.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Protocol

from containerhost import errors
from containerhost.engines.lxd.client import LxdClient
from containerhost.privileged import Privileged

DEFAULT_MODE = "0660"  # for nodes of a device without a mode
WITH_NODES = frozenset({"gpu", "unix-char"})

Devices = Mapping[str, Mapping[str, str]]


class Engine(Protocol):
    client: LxdClient

    def pid(self, name: str) -> int | None: ...

    def await_changes(self, name: str) -> None: ...


class DeviceNodes:
    def __init__(self, engine: Engine, privileged: Privileged) -> None:
        self._engine = engine
        self._privileged = privileged

    @contextlib.contextmanager
    def leaving(self, name: str, before: Devices, after: Devices) -> Iterator[None]:
        """Fence device nodes and remove tenants' names of interfaces while the block detaches them.

        If LXD refuses, the nodes are restored, unless it may still continue; then the caller uses :meth:`restore`."""
        gone = {key: device for key, device in before.items() if after.get(key) != device}
        leaving = with_nodes(gone)
        pid = self._engine.pid(name) if gone else None
        if pid is not None:
            for device in gone.values():
                if device.get("nictype") == "physical" and "name" in device:
                    self._privileged.remove_altnames(pid, device["name"])
        if pid is None or not leaving:
            yield
            return
        self._privileged.fence_nodes(*self.place(name), pid, sorted(leaving))
        try:
            yield
        except (errors.EngineUnavailable, errors.EngineTimeout):
            raise
        except errors.EngineError:
            self.restore(name, leaving)
            raise

    def restore(self, name: str, devices: Devices) -> None:
        """Unfence the nodes of a running container's present devices. Idempotent."""
        having = with_nodes(devices)
        pid = self._engine.pid(name) if having else None
        if pid is not None:
            modes = {key: int(device.get("mode", DEFAULT_MODE), 8) for key, device in having.items()}
            self._privileged.restore_nodes(*self.place(name), pid, modes)

    def forget(self, name: str, pid: int, known: list[str]) -> bool:
        """Remove the nodes of devices that LXD does not know, and return whether there were any."""
        return self._privileged.forget_nodes(*self.place(name), pid, known) > 0

    def place(self, name: str) -> tuple[int, str]:
        """Return the daemon's process, and its name for the directory of a container's nodes."""
        client = self._engine.client
        return client.server()["environment"]["server_pid"], client.settings.directory(name)


def with_nodes(devices: Devices) -> Devices:
    return {key: device for key, device in devices.items() if device["type"] in WITH_NODES}
