# SPDX-License-Identifier: Apache-2.0
"""Prepare consumers' network functions: names, GUIDs, MACs, rates, drivers and links; under each one's lock."""

from collections.abc import Mapping

from containerhost.allocation.netfunction import NO_MAC, SWITCHES, NetFunction
from containerhost.allocation.store import Allocation, AllocationStore, Consumer
from containerhost.devices import pci
from containerhost.devices.grants import GrantOptions
from containerhost.devices.model import Device, Kind, Role
from containerhost.devices.netdev import Netdevs
from containerhost.errors import HostActionFailed, UnsupportedOnHost
from containerhost.inventory.scan import HostView
from containerhost.linux.sysfs import Host
from containerhost.privileged import Privileged


class Functions:
    def __init__(self, store: AllocationStore, privileged: Privileged, host: Host) -> None:
        self._store = store
        self._privileged = privileged
        self._host = host

    def of(self, device: Device) -> NetFunction:
        parent = device.parent if device.role is Role.VF else None
        netdevs = Netdevs(self._host).of(pci.directory(self._host, parent)).netdevs if parent else ()
        return NetFunction(device, [netdev.name for netdev in netdevs], self._privileged, self._host)

    def prepare(self, device: Device, options: GrantOptions, consumer: Consumer, former: Allocation | None) -> bool:
        """Prepare a function's interfaces, GUIDs, MAC, VLAN and rate; return whether an interface was changed.

        :raises UnsupportedOnHost: the card does not support this limit on its VFs
        """
        if device.kind is not Kind.NET:
            return False
        function = self.of(device)
        if former and "link" in former.restore:
            function.set_link(former.restore["link"])  # its container ended while it was frozen
        self._limit(device, function, options, consumer, former)
        if device.netdev_away:
            return False
        # Read the current names: udev may have renamed the interfaces before the lock was taken.
        names = function.netdevs() or device.netdevs
        restore = {"netdev": " ".join(names), "driver": device.driver or ""}
        now = function.guids()
        guids = (options.node_guid or now[0], options.port_guid or now[1])
        if guids != now:
            restore |= {"node_guid": now[0], "port_guid": now[1]}
        restore |= port_before(options, function)
        names = self._store.prepare(device.id, consumer, restore).netdevs
        changed = guids != now
        if changed:
            function.set_guids(*guids)
            function.rebind(count=len(names))
            function.await_guids(*guids)
        if options.mac is not None:
            function.set_port(options.mac, options.vlan, options.spoof_check, options.trust)
            if function.mac() != options.mac:
                changed = True
                function.rebind(count=len(names))
                function.await_mac(options.mac)
        if function.netdevs() != names:
            function.rename(names)
            changed = True
        return changed

    def _limit(self, device: Device, function: NetFunction, options: GrantOptions, consumer: Consumer,
               former: Allocation | None) -> None:
        """Limit a VF's transmit rate, or restore the previous limit.

        The first request repeats the current limit: a card without rate limits refuses it before anything must be
        restored.
        """
        before = former.restore.get("max_tx_rate") if former else None
        if options.max_tx_rate is None and before is None:
            return
        rate = options.max_tx_rate or int(before or 0)
        try:
            if before is None:
                before = function.port()["max_tx_rate"]
                function.set_rate(int(before))
                self._store.prepare(device.id, consumer, {"max_tx_rate": before})
            function.set_rate(rate)
        except HostActionFailed as error:
            raise UnsupportedOnHost(f"the card of network function {device.id} does not limit it to {rate} Mbit/s "
                                    f"(0 is no limit): {error}") from error

    def set_link(self, device: Device, record: Allocation, up: bool) -> None:
        """Disable the link of a VF that the record's consumer has, or restore it."""
        function = self.of(device)
        if "link" not in record.restore:
            record = self._store.prepare(device.id, record.consumer, {"link": function.port()["link"]})
        function.set_link(record.restore["link"] if up else "disable")

    def rebind(self, record: Allocation, view: HostView) -> None:
        """Bind the function's driver if a killed process unbound it.

        :raises HostActionFailed: the driver does not bind
        """
        for device in unbound({record.device_id: record}, view):
            self.of(device).rebind(driver=record.restore.get("driver"), count=len(record.netdevs))
            view.refresh([device.id])


def unbound(records: Mapping[str, Allocation], view: HostView) -> tuple[Device, ...]:
    """Return the network functions without a driver, blocked ones excluded."""
    if not records:
        return ()
    return tuple(device for device in view.inventory.devices
                 if device.kind is Kind.NET and not device.driver
                 and device.id in records and not records[device.id].blocked)


def port_before(options: GrantOptions, function: NetFunction) -> dict[str, str]:
    """Return the settings of a VF's port to restore after ``options``."""
    if options.mac is None:
        return {}
    changed = {"vlan", "qos", *(name for name in SWITCHES if getattr(options, name) is not None)}
    return {"mac": NO_MAC} | {name: text for name, text in function.port().items() if name in changed}
