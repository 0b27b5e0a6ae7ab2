# SPDX-License-Identifier: Apache-2.0
"""VMs for the tests of translations: the recorded deployment, changed."""

from onedriver import document, vm
from tests.unit.onedriver.samples import changed


def machine(*changes: tuple[str, str], more: str = "", own_prefix: str = "LXD_") -> vm.Vm:
    data = changed("deployment.xml", *changes, *([("<VMID>", f"{more}<VMID>")] if more else []))
    return vm.vm(document.parse(data, "VM"), own_prefix)
