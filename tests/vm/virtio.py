# SPDX-License-Identifier: Apache-2.0
"""A vendor plug-in for the GPUs of virtual machines, as an outside package would bring one."""

from typing import ClassVar

from containerhost.devices import drm
from containerhost.devices.model import CharNode, Device, Kind, PciFunction
from containerhost.privileged import Privileged
from containerhost.vendors import base

DRIVER = "virtio-pci"


class Virtio(base.GpuVendor):
    name: ClassVar[str] = "virtio"
    vendor_id: ClassVar[str] = "1af4"
    drivers: ClassVar[frozenset[str]] = frozenset({DRIVER})

    def describe(self, function: PciFunction) -> tuple[Device, ...]:
        return (base.device(function, Kind.GPU, self.name, nodes=self._nodes(function),
                            health=function.health + self.driver_complaints(function)),)

    @classmethod
    def reset(cls, address: str) -> bool:
        """Bind the driver anew: DRM then unplugs the GPU, after which no open descriptor reaches it."""
        Privileged().unbind(address, DRIVER)
        Privileged().bind(address, DRIVER)
        return True

    def _nodes(self, function: PciFunction) -> tuple[CharNode, ...]:
        """They hang at the function, or, with other kernels, at the virtio device in it."""
        nested = (f"{function.directory}/{name}" for name in self.host.names(function.directory)
                  if name.startswith("virtio"))
        return next(filter(None, (drm.nodes(self.host, directory) for directory in (function.directory, *nested))), ())
