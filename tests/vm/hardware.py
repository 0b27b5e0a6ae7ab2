# SPDX-License-Identifier: Apache-2.0
"""The machine's cards: one with virtual functions, one with two ports."""

import json
import subprocess
from pathlib import Path
from typing import Any

import testtools

from containerhost.devices.model import Device, Role
from containerhost.inventory.scan import scan
from containerhost.linux.poll import wait_until
from tests.waiting import await_that

PCI = Path("/sys/bus/pci/devices")
FUNCTIONS = 4
APPEAR_TIMEOUT = 60  # s for drivers to settle; without KVM they are slow


def pf() -> Device:
    return next(device for device in scan().devices if device.role is Role.PF)


def functions() -> list[Device]:
    return [device for device in scan().devices if device.role is Role.VF]


def ports() -> list[Device]:
    """Return the functions of the card with two ports."""
    return [device for device in scan().devices if device.driver == "e1000e"]


def enable(count: int) -> None:
    (PCI / pf().address / "sriov_numvfs").write_text(str(count))


def enabled() -> list[Device]:
    """All virtual functions, each with its driver and interface, under the name that udev gives it."""
    if len(functions()) != FUNCTIONS:
        enable(0)
        enable(FUNCTIONS)
    assert wait_until(lambda: len([vf for vf in functions() if vf.netdev or vf.netdev_away]) == FUNCTIONS,
                      APPEAR_TIMEOUT)
    subprocess.run(["udevadm", "settle"], check=True)
    return functions()


def set_up(netdev: str, up: bool) -> None:
    subprocess.run(["ip", "link", "set", "dev", netdev, "up" if up else "down"], check=True)


def add_address(test: testtools.TestCase, port: Device, address: str) -> None:
    """Let the host use a port, with an IPv4 address, until the test's end, and wait for its carrier."""
    netdev = port.netdev or ""
    carrier = Path("/sys/class/net", netdev, "carrier")
    test.addCleanup(set_up, netdev, False)
    test.addCleanup(subprocess.run, ["ip", "addr", "flush", "dev", netdev], check=True)
    set_up(netdev, True)
    subprocess.run(["ip", "addr", "add", f"{address}/24", "dev", netdev], check=True)
    await_that(lambda: carrier.read_text() == "1\n", f"{netdev} has a carrier")


def links(*options: str, of: int | None = None) -> list[dict[str, Any]]:
    """Return what ``ip`` reports of interfaces: of the host's, or of those of the process ``of``."""
    within = ["nsenter", "--target", str(of), "--net"] if of else []
    return json.loads(subprocess.run([*within, "ip", "-json", "link", "show", *options], check=True,
                                     capture_output=True, text=True).stdout)


class RealDevices(testtools.TestCase):
    """:ivar vfs: the card's functions
    """

    def setUp(self) -> None:
        super().setUp()
        set_up(pf().netdev or "", True)
        self.vfs = enabled()
