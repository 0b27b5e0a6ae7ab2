# SPDX-License-Identifier: Apache-2.0
"""Let ``compute_driver = lxd.LXDDriver`` find this package, however it was installed.

Nova imports drivers from below ``nova.virt`` only, and ``nova`` is a regular package, to which an editable install
cannot add files. But nova-compute lets os-vif load every ``os_vif`` entry point before it imports its driver
(nova.cmd.compute): loading this module registers the additional name. Other programs that use os-vif load it as
well, so it imports only the standard library and changes only that name.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any, ClassVar

NAME = "nova.virt.lxd"
DRIVER = "nova_lxd_ext.driver"


class DriverFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Provide ``nova.virt.lxd``, and no other name, as a module that contains LXDDriver."""

    def find_spec(self, fullname: str, path: Sequence[str] | None,
                  target: types.ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(NAME, self, origin=DRIVER) if fullname == NAME else None

    def exec_module(self, module: types.ModuleType) -> None:
        module.LXDDriver = importlib.import_module(DRIVER).LXDDriver  # type: ignore[attr-defined]


class Hook:
    """Satisfy os-vif, which requires a plug-in for each of its entry points, without plugging anything.

    It does not inherit from os-vif's PluginBase, which this module may not import.

    :cvar CONFIG_OPTS: none; os_vif.opts reads it from every plug-in, also for nova's and neutron's sample
        configurations
    """

    CONFIG_OPTS: ClassVar[list[Any]] = []

    @classmethod
    def load(cls, plugin_name: str) -> "Hook":
        return cls()

    def describe(self) -> Any:
        objects = importlib.import_module("os_vif.objects")
        return objects.host_info.HostPluginInfo(plugin_name="nova_lxd_ext", vif_info=[])

    def plug(self, vif: Any, instance_info: Any) -> None:
        raise NotImplementedError("nova_lxd_ext has no VIF type; no VIF object may name it as its plug-in")

    unplug = plug


def install() -> None:
    """Install the finder once, after the others, so that a real nova.virt.lxd takes precedence."""
    if not any(isinstance(finder, DriverFinder) for finder in sys.meta_path):
        sys.meta_path.append(DriverFinder())


install()
