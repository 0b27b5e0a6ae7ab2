# SPDX-License-Identifier: Apache-2.0
"""Emulated hosts as directories: one copy of each for tests that only look, a fresh one for tests that break it."""

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

import fixtures

from containerhost.inventory.scan import HostView, Inventory
from containerhost.linux.sysfs import Host
from tests.fakehost import description, tree

# Thousands of small files take seconds on a disk and milliseconds in memory.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@functools.cache
def shared(name: str) -> Host:
    """The host tests/fakehost/hosts/<name>.yaml; never change its files."""
    directory = tempfile.mkdtemp(prefix="unit-host-", dir=MEMORY)
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    tree.write(description.load(name), directory)
    return Host(directory)


class FixedView(HostView):
    """Devices that no host has, always the same."""

    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory

    def refresh(self, device_ids: Iterable[str]) -> Inventory:
        return self.inventory


class Broken(fixtures.Fixture):
    """A copy of a host whose files a test may change.

    :ivar host: reads it
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def _setUp(self) -> None:
        self.root = Path(self.useFixture(fixtures.TempDir(rootdir=MEMORY)).path)
        tree.write(description.load(self._name), self.root)
        self.host = Host(self.root)

    def path(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def function(self, address: str) -> Path:
        return self.path(f"/sys/bus/pci/devices/{address}").resolve()

    def write(self, path: str, text: str) -> None:
        target = self.path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def rebind(self, address: str, driver: str) -> None:
        """Show the function as bound to another driver."""
        link = self.function(address) / "driver"
        link.unlink(missing_ok=True)
        link.symlink_to(f"/sys/bus/pci/drivers/{driver}")

    def take_netdev(self, address: str) -> None:
        """Move the function's interface to another network namespace: its directory stays, without it."""
        shutil.rmtree(next((self.function(address) / "net").iterdir()))
