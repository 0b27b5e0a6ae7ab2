# SPDX-License-Identifier: Apache-2.0
"""Name a device for the Container Device Interface (CNCF CDI specification, "Fully qualified device names").

Engines that take CDI names bring an NVIDIA GPU with its driver's libraries; the specifications behind the names are
made by NVIDIA's container toolkit (``nvidia-ctk cdi generate``), which knows every GPU and MIG slice by its UUID.
"""

from containerhost.devices.model import Device

VENDOR = "nvidia.com"


def qualified_name(device: Device) -> str | None:
    """Return ``nvidia.com/gpu=GPU-...``, or ``nvidia.com/mig=MIG-...`` of a slice; None without a UUID."""
    return f"{VENDOR}/{'mig' if device.slice else 'gpu'}={device.uuid}" if device.uuid else None
