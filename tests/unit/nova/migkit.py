# SPDX-License-Identifier: Apache-2.0
"""A host with MIG slices, for unit tests: no sysfs and no Placement behind it."""

import dataclasses
from typing import Any

from containerhost.devices.model import CharNode, Device, Kind, Slice
from containerhost.inventory.scan import Inventory

NODE = "node1"
GPU_A, GPU_B = "0000:3c:00.0", "0000:af:00.0"
SMALL, LARGE = "CUSTOM_MIG_1G_5GB", "CUSTOM_MIG_3G_20GB"


def gpu(address: str, **changes: Any) -> Device:
    values: dict[str, Any] = {"model": "NVIDIA A100-SXM4-40GB", "numa_node": 0 if address == GPU_A else 1}
    return Device(address, address, Kind.GPU, "10de", "20b0", "030200", "nvidia", **values | changes)


def part(address: str, gi: int, profile: str | None = "1g.5gb", **changes: Any) -> Device:
    values: dict[str, Any] = {"model": "NVIDIA A100-SXM4-40GB", "numa_node": 0 if address == GPU_A else 1}
    return Device(f"{address}/gi{gi}/ci0", address, Kind.GPU_SLICE, "10de", "20b0", "030200", "nvidia", parent=address,
                  slice=Slice(gi, 0, profile),
                  nodes=(CharNode(f"/dev/nvidia-caps/nvidia-cap{gi}", 508, gi),), **values | changes)


def place(address: str, number: int, **changes: Any) -> Device:
    """On a shared GPU."""
    return dataclasses.replace(gpu(address, **changes), id=f"{address}/share{number}", kind=Kind.GPU_SHARE,
                               parent=address)


def host(*devices: Device) -> Inventory:
    """Two GPUs: A with two small slices and a large one, B with one small slice; or what is named."""
    return Inventory(devices or (gpu(GPU_A), part(GPU_A, 1), part(GPU_A, 2), part(GPU_A, 5, "3g.20gb"), gpu(GPU_B),
                                 part(GPU_B, 7)))
