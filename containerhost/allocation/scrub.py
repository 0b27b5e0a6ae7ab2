# SPDX-License-Identifier: Apache-2.0
"""Restore a returned device to the state in which it was handed out, or report why it cannot be.

A tenant was root over the device: what can be reset is reset, and nothing a tenant set may reach the next one. The
driver decides whether a handle is left: it resets no GPU in use, and a function that was unbound has none.
"""

from collections.abc import Collection, Mapping

from containerhost.allocation.netfunction import SWITCHES, NetFunction
from containerhost.devices import pci
from containerhost.devices.health import bus
from containerhost.devices.model import Device, Kind, Role
from containerhost.errors import HostActionFailed, ResetRefused, ScrubFailed
from containerhost.linux.poll import retry
from containerhost.linux.sysfs import Host
from containerhost.privileged import Privileged

RESET_INTERVAL = 0.5  # s between two attempts
NO_RESET = "it offers no reset"  # last step in the result of :func:`scrub` if the device was not reset


def scrub(device: Device, restore: Mapping[str, str], function: NetFunction, privileged: Privileged, host: Host,
          others: Collection[str] = (), timeout: float = 0.0) -> tuple[str, ...]:
    """Clean a returned device.

    :param restore: settings recorded before the device was handed out: ``netdev``, ``driver``, ``node_guid``,
        ``port_guid``, ``mac``, ``vlan``, ``link``, ``spoof_check``, ``trust``, ``max_tx_rate``
    :param others: of :meth:`containerhost.vendors.base.Vendor.reset_with`
    :param timeout: seconds for which the reset of a GPU is tried again while its driver refuses it
    :returns: a description of each step
    :raises ScrubFailed: the device is not clean; it must not be allocated again
    """
    try:
        if device.kind is Kind.NET:
            was_reset, done = scrub_net(device, restore, function)
        else:
            was_reset, done = retry(lambda: reset_gpu(device, privileged, others), ResetRefused, timeout,
                                    RESET_INTERVAL), ()
        if was_reset:
            acknowledge_errors(device, privileged, host)
    except ResetRefused as error:
        raise ScrubFailed(str(error)) from error
    except HostActionFailed as error:
        suffers = f" (it suffers from: {'; '.join(device.health)})" if device.health else ""
        raise ScrubFailed(f"device {device.id} could not be cleaned: {error}{suffers}") from error
    return (*done, "it was reset" if was_reset else NO_RESET)


def scrub_net(device: Device, restore: Mapping[str, str], function: NetFunction) -> tuple[bool, tuple[str, ...]]:
    """Clean a network function: clear its MAC, restore its settings, restart the function and its driver.

    That drops the tenant's MAC, MTU, filters and queues. Its interfaces are left down, without addresses and under
    their own names.

    No process needs to be searched: unbinding revokes what is open or mapped (``ib_uverbs`` answers EIO after it, and a
    driver that cannot do so waits for its last user, which ends in an error here).
    """
    done = []
    names = restore.get("netdev", "").split()
    count = len(names) or len(device.netdevs)
    if device.driver:  # else its rebind was interrupted, and no interface appears before it is bound
        function.await_netdevs(count)
    guids = (restore["node_guid"], restore["port_guid"]) if "node_guid" in restore else None
    if guids:
        function.set_guids(*guids)
        done.append("its GUIDs are those of before")
    if "mac" in restore:
        function.set_port(restore["mac"], int(restore.get("vlan", 0)),
                          *(restore[key] == "on" if key in restore else None for key in SWITCHES),
                          qos=int(restore.get("qos", 0)))
        done.append("its MAC is free, its VLAN and switches are those of before")
    if "max_tx_rate" in restore:
        function.set_rate(int(restore["max_tx_rate"]))
        done.append("its rate is that of before")
    if "link" in restore:
        function.set_link(restore["link"])
    # Reset a physical function only if it is unhealthy, because a reset takes its links down.
    was_reset = function.rebind(reset=device.role is Role.VF or not device.sound, driver=restore.get("driver"),
                                count=count)
    if guids:
        function.await_guids(*guids)
    if names:
        function.rename(names)
    function.link_down_and_flush(count or 1)
    return was_reset, (*done, "its driver was rebound")


def reset_gpu(device: Device, privileged: Privileged, others: Collection[str]) -> bool:
    """Reset a whole GPU by its vendor's method.

    Where the vendor has no way, its driver clears memory when it hands it out, and a reset under the driver would not
    be safe."""
    return device.kind is Kind.GPU and privileged.reset_gpu(device.plugin, device.address, others)


def acknowledge_errors(device: Device, privileged: Privileged, host: Host) -> None:
    """Log the reset of a device, so that its earlier errors no longer count.

    Nothing is written where nothing was reported: healthy devices do not fill the log. A VF's errors are those of its
    card."""
    if device.role is not Role.VF and (device.notes or not device.sound):
        directory = pci.directory(host, device.address)
        privileged.mark_reset(device.address, {name: bus.counted(host, directory, name) for name in bus.COUNTERS})
