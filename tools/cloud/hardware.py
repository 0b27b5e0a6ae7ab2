"""Which devices of this machine the cloud offers, and under which alias."""

import dataclasses
import json
import re
from collections.abc import Iterable

from containerhost.devices.model import Device, Kind, LinkLayer, Role


@dataclasses.dataclass(frozen=True)
class Offer:
    """One kind of device that flavors ask for by its alias (nova's ``[pci] alias`` and ``device_spec``)."""

    alias: str
    vendor_id: str
    product_id: str
    device_type: str

    @property
    def alias_option(self) -> str:
        """The device must be on the NUMA node of the server's CPUs."""
        return json.dumps({"name": self.alias, "vendor_id": self.vendor_id, "product_id": self.product_id,
                           "device_type": self.device_type, "numa_policy": "required"})

    @property
    def spec_option(self) -> str:
        return json.dumps({"vendor_id": self.vendor_id, "product_id": self.product_id})

    @property
    def resource_class(self) -> str:
        """What nova calls it in Placement."""
        return f"CUSTOM_PCI_{self.vendor_id}_{self.product_id}".upper()


def gpu(devices: Iterable[Device]) -> Offer | None:
    """The first kind of GPU here; None when the machine has none that works."""
    found = next((device for device in devices if device.kind is Kind.GPU and device.healthy), None)
    if found is None:
        return None
    kind = "type-PF" if found.role is Role.PF else "type-PCI"
    return Offer(f"gpu-{short_model(found)}", found.vendor_id, found.product_id, kind)


def infiniband_vf(devices: Iterable[Device]) -> Offer | None:
    """The first kind of InfiniBand virtual function here; None when the machine has none that works."""
    found = next((device for device in devices if device.role is Role.VF and device.healthy
                  and device.link_layer is LinkLayer.INFINIBAND), None)
    return Offer("ib-vf", found.vendor_id, found.product_id, "type-VF") if found else None


def short_model(device: Device) -> str:
    """``a100`` of ``NVIDIA A100-SXM4-40GB``; the product id when the model has no such word."""
    word = re.search(r"\b([A-Z]+\d+\w*)\b", device.model or "")
    return word.group(1).lower() if word else device.product_id
