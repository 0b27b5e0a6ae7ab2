# SPDX-License-Identifier: Apache-2.0
"""Make ``compute_driver = lxd.LXDDriver`` find this package, whatever way it was installed.

Nova imports drivers from below ``nova.virt`` only, and ``nova`` is a regular package that nobody else's files can join
in an editable install. But nova-compute lets os-vif load every ``os_vif`` entry point before it imports its driver
(nova.cmd.compute): loading this module is enough to teach Python the one extra name. Other programs that use os-vif
load it as well, hence it imports the standard library only and touches nothing but that name.
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
    """Offer ``nova.virt.lxd``, and no other name, as a module that holds LXDDriver."""

    def find_spec(self, fullname: str, path: Sequence[str] | None,
                  target: types.ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(NAME, self, origin=DRIVER) if fullname == NAME else None

    def exec_module(self, module: types.ModuleType) -> None:
        module.LXDDriver = importlib.import_module(DRIVER).LXDDriver  # type: ignore[attr-defined]


class Hook:
    """An os-vif plug-in that plugs nothing: os-vif wants one behind each of its entry points.

    It does not inherit from os-vif's PluginBase, which this module may not import.

    :cvar CONFIG_OPTS: none; os_vif.opts reads it of every plug-in, also for nova's and neutron's sample configurations
    """

    CONFIG_OPTS: ClassVar[list[Any]] = []

    @classmethod
    def load(cls, plugin_name: str) -> "Hook":
        return cls()

    def describe(self) -> Any:
        objects = importlib.import_module("os_vif.objects")
        return objects.host_info.HostPluginInfo(plugin_name="nova_lxd_ext", vif_info=[])

    def plug(self, vif: Any, instance_info: Any) -> None:
        raise NotImplementedError("nova_lxd_ext has no VIF type of its own; no VIF object may name it as its plug-in")

    unplug = plug


def install() -> None:
    """Put the finder in place, once. After the others, so that a real nova.virt.lxd would win."""
    if not any(isinstance(finder, DriverFinder) for finder in sys.meta_path):
        sys.meta_path.append(DriverFinder())


install()
