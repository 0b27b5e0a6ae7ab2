# SPDX-License-Identifier: Apache-2.0
"""Which devices of this machine the cloud offers, and under which alias."""

import dataclasses
import itertools
import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable

from containerhost.devices.model import Device, Kind, LinkLayer, Role

MOVES = {"live_migratable": "yes"}  # of every device, as a container that is migrated live starts anew


@dataclasses.dataclass(frozen=True)
class Pair:
    """A GPU and an InfiniBand virtual function on one NUMA node: what one server gets."""

    gpu: Device
    vf: Device

    @property
    def node(self) -> int | None:
        return self.gpu.numa_node

    @property
    def devices(self) -> tuple[Device, Device]:
        return self.gpu, self.vf

    @property
    def kinds(self) -> tuple[str, ...]:
        return self.gpu.vendor_id, self.gpu.product_id, self.vf.vendor_id, self.vf.product_id


@dataclasses.dataclass(frozen=True)
class Offer:
    """One kind of device that flavors ask for by its alias (nova's ``[pci] alias`` and ``device_spec``)."""

    alias: str
    vendor_id: str
    product_id: str
    device_type: str
    addresses: tuple[str, ...]

    @property
    def alias_option(self) -> str:
        """The device must be on the NUMA node of the server's CPUs."""
        return json.dumps({"name": self.alias, "vendor_id": self.vendor_id, "product_id": self.product_id,
                           "device_type": self.device_type, "numa_policy": "required", **MOVES})

    @property
    def spec_options(self) -> list[str]:
        """By address: of a larger machine the cloud takes no more than it was offered."""
        return [json.dumps({"address": address, "vendor_id": self.vendor_id, "product_id": self.product_id, **MOVES})
                for address in self.addresses]

    @property
    def resource_class(self) -> str:
        """Return its resource class in Placement."""
        return f"CUSTOM_PCI_{self.vendor_id}_{self.product_id}".upper()


class NotEnough(Exception):
    """This machine has not the devices that two servers need; says what is missing."""


def choose(devices: Iterable[Device], held: Collection[str] = ()) -> tuple[Pair, Pair]:
    """Two pairs of the same kinds of device, on different NUMA nodes where there are such.

    :param held: ids of devices that containers have already
    :raises NotEnough: there are not two
    """
    free = [device for device in devices if device.healthy and device.numa_node is not None and device.id not in held]
    gpus = [device for device in free if device.kind is Kind.GPU]
    vfs = [device for device in free
           if device.role is Role.VF and device.link_layer is LinkLayer.INFINIBAND and device.netdev]
    alike: defaultdict[tuple[str, ...], list[Pair]] = defaultdict(list)
    for node in sorted({gpu.numa_node for gpu in gpus if gpu.numa_node is not None}):
        near = [vf for vf in vfs if vf.numa_node == node]
        for pair in itertools.starmap(Pair, zip((gpu for gpu in gpus if gpu.numa_node == node), near, strict=False)):
            alike[pair.kinds].append(pair)
    for first, *others in alike.values():
        if others:
            return first, next((pair for pair in others if pair.node != first.node), others[0])
    raise NotEnough(f"this machine has {len(gpus)} GPUs and {len(vfs)} InfiniBand virtual functions that work and are "
                    "free; two of each are needed, each GPU with a virtual function on its NUMA node")


def offers(pairs: Collection[Pair]) -> tuple[Offer, Offer]:
    """Return what flavors call the two devices of such pairs."""
    gpu, vf = next(iter(pairs)).devices
    kind = "type-PF" if gpu.role is Role.PF else "type-PCI"
    return (Offer(f"gpu-{short_model(gpu)}", gpu.vendor_id, gpu.product_id, kind,
                  tuple(pair.gpu.address for pair in pairs)),
            Offer("ib-vf", vf.vendor_id, vf.product_id, "type-VF", tuple(pair.vf.address for pair in pairs)))


def short_model(device: Device) -> str:
    """``a100`` of ``NVIDIA A100-SXM4-40GB``; the product id when the model has no such word."""
    word = re.search(r"\b([A-Z]+\d+\w*)\b", device.model or "")
    return word.group(1).lower() if word else device.product_id
