# SPDX-License-Identifier: Apache-2.0
"""Prepare a network function for a container, and restore it: GUIDs, driver, reset, and its interface under its own
name.

Used before a container gets the function and after it had it. Every wait has a limit: the kernel returns the interface
of a dead network namespace, and makes a newly bound driver's interface, only a moment later.
"""

import json
from collections.abc import Callable

from containerhost.devices import pci
from containerhost.devices.model import Device, Role
from containerhost.devices.netdev import Netdevs
from containerhost.devices.rdma import RdmaDevices
from containerhost.errors import HostActionFailed
from containerhost.linux.poll import wait_until
from containerhost.linux.run import run
from containerhost.privileged import Privileged
from containerhost.sysfs import Host

NO_GUID = "0000:0000:0000:0000"
NO_MAC = "00:00:00:00:00:00"
RETURN_TIMEOUT = 15.0  # s for an interface to come back from a dead namespace; many of them die one after another
BIND_TIMEOUT = 30.0  # s for a driver to bring up a function; firmware that is busy takes seconds


class NetFunction:
    """:param device: as the host knew it at some time; only what never changes is used: address, role, driver, parent
    :param parent_netdev: the PF's interface, for a VF
    """

    def __init__(self, device: Device, parent_netdev: str | None, privileged: Privileged, host: Host) -> None:
        self._device = device
        self._parent_netdev = parent_netdev
        self._privileged = privileged
        self._host = host

    def netdev(self) -> str | None:
        """Return the interface's present name on the host; None while it is elsewhere."""
        netdev = Netdevs(self._host).of(pci.directory(self._host, self._device.address)).netdev
        return netdev.name if netdev else None

    def guids(self) -> tuple[str, str]:
        """Return the node and port GUID as they are now, zeros for none."""
        side = RdmaDevices(self._host).of(pci.directory(self._host, self._device.address)).rdma
        return (side and side.node_guid) or NO_GUID, (side and side.port_guid) or NO_GUID

    def await_netdev(self, timeout: float | None = None) -> str:
        """Wait for the interface on the host, and return its name.

        :param timeout: seconds; None is RETURN_TIMEOUT
        :raises HostActionFailed: it does not appear in time
        """
        timeout = RETURN_TIMEOUT if timeout is None else timeout
        if not wait_until(lambda: self.netdev() is not None, timeout):
            raise HostActionFailed(f"the interface of {self._device.address} did not appear on the host within "
                                   f"{timeout:g} s; a process may still be in the container that had it")
        return self.netdev() or ""

    def set_guids(self, node_guid: str, port_guid: str) -> None:
        """Give a VF its GUIDs; :meth:`rebind` makes its driver take them."""
        self._privileged.set_vf_guids(*self._parents("GUIDs"), node_guid, port_guid)

    def mac(self) -> str | None:
        """Return the interface's MAC as it is now; None while it is elsewhere."""
        netdev = Netdevs(self._host).of(pci.directory(self._host, self._device.address)).netdev
        return netdev.mac if netdev else None

    def set_port(self, mac: str, vlan: int, spoof_check: bool | None = None, trust: bool | None = None) -> None:
        """Give an Ethernet VF the MAC and VLAN it must use; zeros and 0 leave it free. :meth:`rebind` makes its driver
        take the MAC."""
        self._privileged.set_vf_port(*self._parents("MAC and VLAN"), mac, vlan, spoof_check, trust)

    def spoof_check(self) -> bool:
        """Return whether the card drops what the VF sends from other MACs than its own."""
        netdev, index = self._parents("the check of MACs")
        done = run(["ip", "-json", "link", "show", "dev", netdev], BIND_TIMEOUT)
        told = json.loads(done.stdout)[0].get("vfinfo_list", ()) if done.returncode == 0 else ()
        for vf in told:
            if vf["vf"] == index:
                return bool(vf.get("spoofchk", False))
        raise HostActionFailed(f"`ip link show dev {netdev}` does not tell of VF {index}: {done.stderr.strip()}")

    def set_rate(self, rate: int) -> None:
        """Let a VF send at most ``rate`` Mbit/s, whatever its holder sets; 0 is no limit."""
        self._privileged.set_vf_rate(*self._parents("rates"), rate)

    def set_link(self, up: bool) -> None:
        """Let a VF have its card's link, or none: then nothing reaches it and it sends nothing."""
        self._privileged.set_vf_link(*self._parents("link"), up)

    def _parents(self, what: str) -> tuple[str, int]:
        """Return the interface of a VF's physical function, and the VF's number there."""
        index = self._device.vf_index
        if self._device.role is not Role.VF or self._parent_netdev is None or index is None:
            raise HostActionFailed(f"{self._device.address}: {what} are set through the physical function of a VF, and "
                                   f"that of this device ({self._device.parent or 'none'}) has no interface here")
        return self._parent_netdev, index

    def await_mac(self, mac: str) -> None:
        """Wait until the interface has this MAC.

        :raises HostActionFailed: the driver does not show it in time
        """
        if not wait_until(lambda: self.mac() == mac, BIND_TIMEOUT):
            raise HostActionFailed(f"{self._device.address} shows MAC {self.mac()}, not {mac}, {BIND_TIMEOUT:g} s "
                                   f"after "
                                   f"it was set")

    def rebind(self, *, reset: bool = False, driver: str | None = None) -> bool:
        """Start the function anew: unbind its driver, reset it if asked, bind, and wait for its interface.

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
        self.await_netdev(BIND_TIMEOUT)
        return was_reset

    def await_guids(self, node_guid: str, port_guid: str) -> None:
        """Wait until the function has these GUIDs.

        :raises HostActionFailed: the driver does not show them in time
        """
        if not wait_until(lambda: self.guids() == (node_guid, port_guid), BIND_TIMEOUT):
            raise HostActionFailed(f"{self._device.address} shows GUIDs {self.guids()}, not {(node_guid, port_guid)}, "
                                   f"{BIND_TIMEOUT:g} s after they were set")

    def rename(self, name: str) -> None:
        """Give the interface ``name`` back: the kernel returns it under whatever name is free.

        :raises HostActionFailed: it is not called so in time
        """
        self._by_name(lambda present: self._privileged.rename_netdev(present, name) if present != name else None)
        if not wait_until(lambda: self.netdev() == name, RETURN_TIMEOUT):
            raise HostActionFailed(f"the interface of {self._device.address} is {self.netdev()}, not {name}, "
                                   f"{RETURN_TIMEOUT:g} s after it was called so")

    def link_down_and_flush(self) -> None:
        self._by_name(self._privileged.link_down_and_flush)

    def _by_name(self, act: Callable[[str], None]) -> None:
        """Do something to the interface. Under its eyes udev may give one that has just appeared another name."""
        while True:
            present = self.await_netdev()
            try:
                act(present)
                return
            except HostActionFailed:
                if self.netdev() == present:
                    raise
