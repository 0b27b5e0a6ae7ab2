# SPDX-License-Identifier: Apache-2.0
"""Choose the devices of a host for a consumer's requests, and refuse what it cannot have. Pure."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping

from containerhost.allocation.states import State
from containerhost.allocation.store import Allocation, Consumer
from containerhost.devices.grants import Grant, GrantOptions, netdev_names
from containerhost.devices.model import CharNode, Device, Kind, NodeUse
from containerhost.errors import DeviceHeld, DeviceUnhealthy, SpecError
from containerhost.inventory.scan import HostView, Inventory
from containerhost.vendors import make_grant


@dataclasses.dataclass(frozen=True)
class Request:
    """Name a device that a consumer asks for, with the options of its grant.

    :ivar address: PCI address, or the id of a slice
    """

    address: str
    options: GrantOptions = dataclasses.field(default_factory=GrantOptions)


View = Callable[[], HostView]  # scans the host once for an operation
Foreign = Callable[[Iterable[Device]], Mapping[str, str]]  # device id -> container whose configuration has it


def requested(inventory: Inventory, requests: Iterable[Request], mine: Mapping[str, Allocation],
              others: Iterable[str] = ()) -> list[tuple[Device, GrantOptions]]:
    """Return the requested devices with their options.

    :param mine: records of what the consumer has
    :param others: ids of further devices that it will have
    :raises DeviceNotFound, DeviceUnhealthy, SpecError: the consumer cannot be given all of them
    """
    wanted = [(usable(inventory, request, mine), request.options) for request in requests]
    require_distinct(wanted, others)
    return wanted


def usable(inventory: Inventory, request: Request, mine: Mapping[str, Allocation]) -> Device:
    device = inventory.get(request.address)
    if device.id in mine:
        device = with_own_netdev(device, mine[device.id])
    if not (device.sound if device.id in mine else device.healthy):
        raise DeviceUnhealthy(f"device {device.id} is not healthy: {'; '.join(device.health)}")
    return device


def left_out(inventory: Inventory, requests: Iterable[Request], mine: Mapping[str, Allocation], least: int
             ) -> frozenset[str]:
    """Return the faulty GPUs that a stopped container must start without, if enough are left.

    Tainted ones are preferred to sick ones. Only GPUs already allocated to it count: a new claim on a faulty GPU is
    refused."""
    had = {name for name, record in mine.items() if record.state in (State.ATTACHED, State.DETACHED)}
    gpus = whole_gpus(inventory, requests)
    ready = [device for device in gpus if device.healthy or device.id not in had]
    others = sorted((device for device in gpus if device not in ready), key=lambda device: not device.sound)
    return frozenset(device.id for device in others[max(0, least - len(ready)):])


def require_gpus(inventory: Inventory, requests: Iterable[Request], mine: Mapping[str, Allocation], least: int) -> None:
    """Refuse a container whose minimum of GPUs exceeds what it can have.

    :raises SpecError: fewer were claimed for it
    :raises DeviceUnhealthy: too many have left the host
    """
    found, lost = len(whole_gpus(inventory, requests)), gone(inventory, mine)
    if found + len(lost) < least:
        raise SpecError(f"it must keep {least} GPUs, but has a claim on {found + len(lost)} whole ones: request more, "
                        "or lower the minimum")
    if found < least:
        raise DeviceUnhealthy(f"it must keep {least} GPUs, but {', '.join(sorted(lost))} left the host")


def whole_gpus(inventory: Inventory, requests: Iterable[Request]) -> list[Device]:
    found = (inventory.get(request.address) for request in requests)
    return [device for device in found if device.kind is Kind.GPU]


def gone(inventory: Inventory, mine: Mapping[str, Allocation]) -> frozenset[str]:
    """Return the ids of the consumer's detached devices that this host no longer has."""
    return detached(mine) - {device.id for device in inventory.devices}


def detached(mine: Mapping[str, Allocation]) -> frozenset[str]:
    """Return the ids of devices currently detached from the consumer's container."""
    return frozenset(name for name, record in mine.items() if record.state is State.DETACHED)


def require_distinct(wanted: Iterable[tuple[Device, GrantOptions]], mine: Iterable[str] = ()) -> None:
    """Refuse devices that one container cannot have together.

    :param mine: ids of what the container has already
    :raises SpecError: one device or one interface name is asked for twice
    """
    devices, names = set(), set[str]()
    shares = {name.partition("/share")[0]: name for name in mine if "/share" in name}
    for device, options in wanted:
        if device.id in devices:
            raise SpecError(f"device {device.id} is requested twice by one container")
        if device.kind is Kind.GPU_SHARE and shares.setdefault(device.address, device.id) != device.id:
            raise SpecError(f"one container would have two shares of GPU {device.address}, {shares[device.address]} "
                            f"and {device.id}, which offer no more than one: choose shares of two GPUs")
        called = set(netdev_names(device, options)) if options.netdev_name else set()
        if called & names:
            raise SpecError(f"two devices of one container would be named {min(called & names)}")
        devices.add(device.id)
        names |= called


def granted(inventory: Inventory, requests: Iterable[Request], mine: Mapping[str, Allocation], consumer: Consumer
            ) -> tuple[Grant, ...]:
    """Return the grants of those requested devices that the consumer has.

    :raises DeviceHeld: it does not have one of them
    """
    grants = []
    for request in requests:
        device = inventory.get(request.address)
        if device.id not in mine:
            raise DeviceHeld(f"device {device.id} is not held by {consumer}")
        grant = make_grant(with_own_netdev(device, mine[device.id]), request.options)
        grants.append(dataclasses.replace(grant, provenance=mine[device.id].before))
    return tuple(grants)


def with_own_netdev(device: Device, record: Allocation) -> Device:
    """Return the device with the names of its interfaces from its record, if some of them are in the container."""
    names = record.netdevs
    if len(names) > len(device.netdevs) and (device.netdev or device.netdev_away):
        return dataclasses.replace(device, netdev=names[0], other_netdevs=names[1:])
    return device


def own_nodes(device: Device) -> tuple[CharNode, ...]:
    return tuple(node for node in device.nodes if node.use is NodeUse.OWN)


def concerned(device: Device, inventory: Inventory) -> tuple[Device, ...]:
    """Return the device and all devices by which a container's configuration may name it.

    Other parts of the same GPU count: a container that has one of those by its nodes names the GPU's node, too."""
    return tuple({other.id: other for other in (
        device, *inventory.related(device), *inventory.by_address(device.address))}.values())


def refuse_configured(users: Mapping[str, str], inventory: Inventory, devices: Iterable[Device], consumer: Consumer
                      ) -> None:
    """Refuse devices that, or whose related devices, another container's configuration names.

    :param users: device id -> container
    :raises DeviceHeld: such a container exists
    """
    for device in devices:
        for other in (device, *inventory.related(device)):
            user = users.get(other.id)
            if user not in (None, consumer.container):
                raise DeviceHeld(f"device {device.id} cannot be given to {consumer}: the configuration of container "
                                 f"{user} has {other.id}")
