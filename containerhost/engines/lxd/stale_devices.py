# SPDX-License-Identifier: Apache-2.0
"""Remove devices that a killed daemon put into a container and does not know of.

LXD creates a device's nodes, allows them, moves its interface, and records the device last. Killed in between, it
does not remove them before the container ends, and refuses to create them again ("file exists"). When it removes an
interface, it forgets its name on the host first and the device last; killed in between, it refuses to remove the
device ("Device didn't provide a link property to use").
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from containerhost import errors
from containerhost.devices.grants import Grant
from containerhost.engines.lxd.device_nodes import DeviceNodes, Devices, Engine
from containerhost.linux.sysfs import Host
from containerhost.privileged import Privileged

Instance = Mapping[str, Any]


class StaleDevices:
    def __init__(self, engine: Engine, privileged: Privileged, host: Host, nodes: DeviceNodes) -> None:
        self._engine = engine
        self._privileged = privileged
        self._host = host
        self._nodes = nodes

    def retry_after_cleanup(self, name: str, instance: Instance, after: Devices, act: Callable[[], None],
                            absent: Sequence[Grant] = ()) -> None:
        """Change a container's devices; on a conflict remove stale devices and try again.

        :param instance: as LXD describes it before
        """
        with self._nodes.leaving(name, instance["devices"], after):
            try:
                act()
            except (errors.EngineUnavailable, errors.EngineTimeout, errors.EngineConflict):
                raise
            except errors.EngineError:
                if not self.clear(name, instance, absent):
                    raise
                act()

    def clear(self, name: str, instance: Instance, absent: Sequence[Grant] = ()) -> bool:
        """Remove the remains of a killed attachment or detachment from a running container.

        :raises EngineConflict: it has changed since LXD described it
        """
        pid = self._engine.pid(name)
        if pid is None:
            return False
        self._engine.await_changes(name)
        if self._engine.client.instance(name).instance["devices"] != instance["devices"]:
            raise errors.EngineConflict(f"a change of container {name} has just ended")
        nodes = self._nodes.forget(name, pid, sorted({*instance["devices"], *instance.get("expanded_devices", ())}))
        fetched = self._fetch_interfaces(pid, absent)
        return self._name_interfaces(name, instance) or fetched or nodes

    def _fetch_interfaces(self, pid: int, absent: Sequence[Grant]) -> bool:
        inside = self._privileged.inside(pid).netdevs
        left = [netdev for grant in absent for netdev in grant.netdevs if netdev.name in inside
                and not self._host.is_directory(f"/sys/class/net/{netdev.host_name}")]
        for netdev in left:
            self._privileged.fetch_netdev(pid, netdev.name, netdev.host_name)
        return bool(left)

    def _name_interfaces(self, name: str, instance: Instance) -> bool:
        keys = {f"volatile.{key}.host_name": device["parent"] for key, device in instance["devices"].items()
                if device.get("nictype") == "physical"}
        forgotten = {key: parent for key, parent in keys.items() if not instance["config"].get(key)}
        if forgotten:
            self._engine.client.patch_instance(name, {"config": forgotten})
        return bool(forgotten)
