# SPDX-License-Identifier: Apache-2.0
"""Show the interface of a function in the function's directory and, with a PCI device behind it, in /sys/class/net.

The kernel shows a TAP at /sys/devices/virtual/net. Its directory is mirrored, with links to the real attributes, to
``<function>/net/<name>``, and that directory is mounted over the kernel's.
"""

import os
import shutil
import tempfile

from tests.fakehost import linux, pci
from tests.fakehost.description import Kind
from tests.fakehost.functions import NetFunction
from tests.fakehost.nets import hardware_address

_NETDEVS = "devices/virtual/net"


class Interfaces:
    """
    :param real: where the kernel's own /sys of this namespace is mounted
    :param scratch: a directory on the same file system as /sys, where what is shown is made ready
    """

    def __init__(self, real: str, scratch: str) -> None:
        self._real = real
        self._scratch = scratch
        self._shown: dict[str, str] = {}
        self._left: dict[str, str] = {}

    def follow(self, function: NetFunction, name: str | None) -> None:
        """Show a function's interface under its present name, or no longer when it has left the host (None)."""
        shown = self._shown.get(function.address)
        if shown == name and (name is None or os.path.lexists(f"/sys/{_NETDEVS}/{name}/device")):
            return
        if shown is not None:
            self._hide(function, self._shown.pop(function.address))
        if name is not None and self._show(function, name):
            self._shown[function.address] = name
            shutil.rmtree(self._left.pop(function.address, ""), ignore_errors=True)

    def refresh(self, function: NetFunction) -> None:
        """Write again what an emulated interface says of itself."""
        name = self._shown.get(function.address)
        if name is not None:
            _write_attributes(function, _directory(function, name))

    def _hide(self, function: NetFunction, name: str) -> None:
        """Remove an interface from the function's directory.

        What was mounted over the kernel's follows an interface that comes back, and whoever brought it back looks at it
        at once: so its links stay until it is shown anew."""
        shutil.rmtree(self._left.pop(function.address, ""), ignore_errors=True)
        left = tempfile.mkdtemp(dir=self._scratch)
        os.rename(_directory(function, name), left)
        self._left[function.address] = left

    def _show(self, function: NetFunction, name: str) -> bool:
        """Show an interface; False when it has been renamed or has left meanwhile, which will be told next."""
        directory = tempfile.mkdtemp(dir=self._scratch)
        real, target = f"{self._real}/{_NETDEVS}/{name}", f"/sys/{_NETDEVS}/{name}"
        try:
            os.chmod(directory, 0o755)
            for entry in os.listdir(real):
                os.symlink(f"{real}/{entry}", f"{directory}/{entry}")
            os.symlink(f"/{pci.of(function)}", f"{directory}/device")
            _write_attributes(function, directory)
            while os.path.ismount(target):  # what was mounted here follows an interface that is renamed or comes back
                linux.unmount(target)
            linux.bind(directory, target)
        except FileNotFoundError:
            shutil.rmtree(directory)
            return False
        os.makedirs(os.path.dirname(_directory(function, name)), exist_ok=True)
        os.rename(directory, _directory(function, name))
        return True


def _write_attributes(function: NetFunction, directory: str) -> None:
    if function.card.kind is not Kind.INFINIBAND:
        return
    for attribute, value in (("address", hardware_address(function)), ("addr_len", "20")):
        path = f"{directory}/{attribute}"
        os.unlink(path)  # a link to the TAP's attributes
        with open(path, "w", encoding="ascii") as file:
            file.write(f"{value}\n")


def _directory(function: NetFunction, name: str) -> str:
    return f"/{pci.of(function)}/net/{name}"
