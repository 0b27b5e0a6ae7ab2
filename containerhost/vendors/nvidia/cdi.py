"""How the Container Device Interface names a device (CNCF CDI specification, "Fully qualified device names").

Engines that take CDI names bring an NVIDIA GPU with its driver's libraries; the specifications behind the names are
made by NVIDIA's container toolkit (``nvidia-ctk cdi generate``), which knows every GPU and MIG slice by its UUID.
"""

from containerhost.devices.model import NVIDIA, Device

_KIND = "nvidia.com/gpu"


def qualified_name(device: Device) -> str | None:
    """``nvidia.com/gpu=GPU-...``; None for what is not NVIDIA's or has no UUID."""
    return f"{_KIND}={device.uuid}" if device.vendor_id == NVIDIA and device.uuid else None
