"""Bring a returned device into the state it was given away in, or say why it cannot be.

A tenant was root over the device: what can be reset is reset, and nothing a tenant set may reach the next one.
"""

from collections.abc import Mapping

from containerhost.devices.model import NVIDIA, Device, Kind, NodeUse, Role
from containerhost.errors import HostActionFailed, ScrubFailed
from containerhost.netfunction import NetFunction, wait_for
from containerhost.privileged import Privileged

USERS_LIMIT = 10.0  # s for the last processes of a killed container to let go of a GPU


def scrub(device: Device, restore: Mapping[str, str], function: NetFunction, privileged: Privileged) -> None:
    """:param restore: what was remembered before the device was given away: ``netdev``, ``driver``, ``node_guid``,
        ``port_guid``, ``mac``, ``link``, ``spoof_check``, ``trust``
    :raises ScrubFailed: the device is not clean; it must not be given to anybody
    """
    try:
        if device.kind is Kind.NET:
            scrub_net(device, restore, function)
        else:
            scrub_gpu(device, privileged)
    except HostActionFailed as error:
        raise ScrubFailed(f"device {device.id} could not be cleaned: {error}") from error


def scrub_net(device: Device, restore: Mapping[str, str], function: NetFunction) -> None:
    """GUIDs and MAC back, no VLAN, the function and its driver started anew (which drops the tenant's MAC, MTU, filters
    and queues), and the interface down, without addresses and under its own name."""
    if device.driver:  # else whoever began to rebind it was killed: no interface can return before it is bound
        function.await_netdev()
    guids = (restore["node_guid"], restore["port_guid"]) if "node_guid" in restore else None
    if guids:
        function.set_guids(*guids)
    if "mac" in restore:
        function.set_port(restore["mac"], 0, *(restore[key] == "on" if key in restore else None
                                               for key in ("spoof_check", "trust")))
    if "link" in restore:
        function.set_link(True)
    function.rebind(reset=device.role is Role.VF, driver=restore.get("driver"))
    if guids:
        function.await_guids(*guids)
    if "netdev" in restore:
        function.rename(restore["netdev"])
    function.quieten()


def scrub_gpu(device: Device, privileged: Privileged) -> None:
    """No process of a container may be left on it; a place on a shared GPU has no nodes of its own. A whole NVIDIA GPU
    is reset; the others' drivers clear memory when they hand it out, and resetting a GPU under its driver is only safe
    with the vendor's tool."""
    own = tuple((node.major, node.minor) for node in device.nodes if node.use is NodeUse.OWN)
    if not wait_for(lambda: not privileged.users(own), USERS_LIMIT):
        raise HostActionFailed(f"still in use by {', '.join(privileged.users(own))}")
    if device.vendor_id == NVIDIA and device.kind is Kind.GPU:
        privileged.reset_nvidia_gpu(device.address)
