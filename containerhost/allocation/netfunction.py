# SPDX-License-Identifier: Apache-2.0
"""Prepare a network function for a container and restore it: GUIDs, driver, reset, interface names.

Used before a container gets the function and after it had it. Every wait has a limit: the kernel returns the interfaces
of a dead network namespace, and makes a newly bound driver's interfaces, only a moment later.
"""

import json
from collections.abc import Callable, Sequence

from containerhost.devices import pci
from containerhost.devices.model import Device, Role
from containerhost.devices.netdev import Netdevs
from containerhost.devices.rdma import RdmaDevices
from containerhost.errors import HostActionFailed
from containerhost.linux.poll import wait_until
from containerhost.linux.run import run
from containerhost.linux.sysfs import Host
from containerhost.privileged import Privileged

SWITCHES = {"spoof_check": "spoofchk", "trust": "trust"}  # settings of a VF, named as in ip-link(8)
NO_GUID = "0000:0000:0000:0000"
NO_MAC = "00:00:00:00:00:00"
RETURN_TIMEOUT = 15.0  # s for an interface to return from a destroyed namespace; many may be destroyed at once
BIND_TIMEOUT = 30.0  # s for a driver to initialize a function; busy firmware takes seconds


class NetFunction:
    """Prepare a network function, physical or virtual, for a container, and restore it on the host afterwards.

    :param device: as the host knew it at some time; only what never changes is used: address, role, driver, parent
    :param parent_netdevs: the PF's interfaces, one for each of its ports, for a VF
    """

    def __init__(self, device: Device, parent_netdevs: Sequence[str], privileged: Privileged, host: Host) -> None:
        self._device = device
        self._parent_netdevs = parent_netdevs
        self._privileged = privileged
        self._host = host

    def netdevs(self) -> tuple[str, ...]:
        """Return its interfaces' names on the host, in the order of its ports; none while they are elsewhere."""
        found = Netdevs(self._host).of(pci.directory(self._host, self._device.address))
        return tuple(netdev.name for netdev in found.netdevs)

    def guids(self) -> tuple[str, str]:
        """Return the node and port GUID as they are now, zeros for none."""
        side = RdmaDevices(self._host).of(pci.directory(self._host, self._device.address)).rdma
        return (side and side.node_guid) or NO_GUID, (side and side.port_guid) or NO_GUID

    def await_netdevs(self, count: int, timeout: float | None = None) -> tuple[str, ...]:
        """Wait for the interfaces on the host, and return their names.

        :param count: how many the function has; at least one is waited for
        :param timeout: seconds; None is RETURN_TIMEOUT
        :raises HostActionFailed: they do not appear in time
        """
        timeout, count = RETURN_TIMEOUT if timeout is None else timeout, max(1, count)
        if not wait_until(lambda: len(self.netdevs()) >= count, timeout):
            raise HostActionFailed(f"{len(self.netdevs())} of {count} interfaces of {self._device.address} appeared on "
                                   f"the host within {timeout:g} s; a process may still be in the container that had "
                                   "it")
        return self.netdevs()

    def set_guids(self, node_guid: str, port_guid: str) -> None:
        """Set the GUIDs of a VF; :meth:`rebind` makes its driver apply them."""
        for netdev, index in self._parents("GUIDs"):
            self._privileged.set_vf_guids(netdev, index, node_guid, port_guid)

    def mac(self) -> str | None:
        """Return the first interface's MAC as it is now; None while it is elsewhere."""
        netdev = Netdevs(self._host).of(pci.directory(self._host, self._device.address)).netdev
        return netdev.mac if netdev else None

    def set_port(self, mac: str, vlan: int, spoof_check: bool | None = None, trust: bool | None = None, *,
                 qos: int = 0) -> None:
        """Set the MAC and VLAN that an Ethernet VF must use; zeros and 0 remove the restriction.

        :meth:`rebind` makes its driver apply the MAC."""
        for netdev, index in self._parents("MAC and VLAN"):
            self._privileged.set_vf_port(netdev, index, mac, vlan, spoof_check, trust, qos)

    def port(self) -> dict[str, str]:
        """Return a VF's VLAN, switches, rate and link, as in a record's ``restore``, without those that the card lacks.

        Not its MAC: some drivers report one that they chose themselves, and hold the VF to it once it is set.
        """
        netdev, index = self._parents("settings")[0]
        done = run(["ip", "-json", "link", "show", "dev", netdev], BIND_TIMEOUT)
        shown = json.loads(done.stdout or "[]") if done.returncode == 0 else []
        for vf in shown[0].get("vfinfo_list", ()) if shown else ():
            if vf["vf"] == index:
                vlan, rate = vf.get("vlan_list", [vf])[0], vf.get("rate", {}).get("max_tx", 0)
                return {"vlan": str(vlan.get("vlan", 0)), "qos": str(vlan.get("qos", 0)), "max_tx_rate": str(rate),
                        "link": vf.get("link_state", "auto")} | {
                    name: "on" if vf[key] else "off" for name, key in SWITCHES.items() if key in vf}
        raise HostActionFailed(f"`ip link show dev {netdev}` does not list VF {index}: {done.stderr.strip()}")

    def set_rate(self, rate: int) -> None:
        """Limit the transmit rate of a VF to ``rate`` Mbit/s, whatever its holder sets; 0 is no limit."""
        for netdev, index in self._parents("rates"):
            self._privileged.set_vf_rate(netdev, index, rate)

    def set_link(self, state: str) -> None:
        """Set the link of a VF: that of its card (auto), always up (enable), or always down (disable)."""
        for netdev, index in self._parents("link"):
            self._privileged.set_vf_link(netdev, index, state)

    def _parents(self, what: str) -> list[tuple[str, int]]:
        """Return the interfaces of a VF's physical function, each with the VF's number there."""
        index = self._device.vf_index
        if self._device.role is not Role.VF or not self._parent_netdevs or index is None:
            raise HostActionFailed(f"{self._device.address}: {what} are set through the physical function of a VF, and "
                                   f"that of this device ({self._device.parent or 'none'}) has no interface here")
        return [(netdev, index) for netdev in self._parent_netdevs]

    def await_mac(self, mac: str) -> None:
        """Wait until the interface has this MAC.

        :raises HostActionFailed: the driver does not show it in time
        """
        if not wait_until(lambda: self.mac() == mac, BIND_TIMEOUT):
            raise HostActionFailed(f"{self._device.address} shows MAC {self.mac()}, not {mac}, {BIND_TIMEOUT:g} s "
                                   f"after "
                                   f"it was set")

    def rebind(self, *, reset: bool = False, driver: str | None = None, count: int = 1) -> bool:
        """Restart the function: unbind its driver, reset it if asked, bind, and wait for its interfaces.

        :param driver: the driver to bind when it has none, because an earlier rebind was interrupted
        :returns: whether it was reset
        """
        bound, driver = self._device.driver, self._device.driver or driver
        if not driver:
            raise HostActionFailed(f"{self._device.address} has no driver to bind again")
        if bound:
            self._privileged.unbind(self._device.address, bound)
        was_reset = False
        try:
            was_reset = reset and self._privileged.reset(self._device.address)
        finally:
            self._privileged.bind(self._device.address, driver)
        self.await_netdevs(count, BIND_TIMEOUT)
        return was_reset

    def await_guids(self, node_guid: str, port_guid: str) -> None:
        """Wait until the function has these GUIDs.

        :raises HostActionFailed: the driver does not show them in time
        """
        if not wait_until(lambda: self.guids() == (node_guid, port_guid), BIND_TIMEOUT):
            raise HostActionFailed(f"{self._device.address} shows GUIDs {self.guids()}, not {(node_guid, port_guid)}, "
                                   f"{BIND_TIMEOUT:g} s after they were set")

    def rename(self, names: Sequence[str]) -> None:
        """Restore the interfaces' ``names``: the kernel returns them under whatever names are free.

        :raises HostActionFailed: they do not have these names in time
        """
        self._each(len(names), lambda port, present: self._privileged.rename_netdev(present, names[port])
                   if present != names[port] else None)
        if not wait_until(lambda: self.netdevs() == tuple(names), RETURN_TIMEOUT):
            raise HostActionFailed(f"the interfaces of {self._device.address} are {', '.join(self.netdevs())}, not "
                                   f"{', '.join(names)}, {RETURN_TIMEOUT:g} s after they were renamed")

    def link_down_and_flush(self, count: int = 1) -> None:
        """Set the interfaces down and remove their addresses."""
        self._each(count, lambda port, present: self._privileged.link_down_and_flush(present))

    def _each(self, count: int, act: Callable[[int, str], None]) -> None:
        """Apply a function to each interface, which udev may rename concurrently."""
        for port in range(count):
            while True:
                present = self.await_netdevs(count)[port]
                try:
                    act(port, present)
                    break
                except HostActionFailed:
                    if self.netdevs()[port:port + 1] == (present,):
                        raise
