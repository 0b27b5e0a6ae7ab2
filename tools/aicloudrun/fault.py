# SPDX-License-Identifier: Apache-2.0
"""Break and mend devices of the emulated host: python -m tools.aicloudrun.fault break|mend gpu|net ADDRESS."""

import sys
from pathlib import Path

from tests.fakehost.control import FakeHostControl
from tools.showcase.breakfix import fall


def main(action: str, kind: str, address: str) -> None:
    hardware = FakeHostControl.from_environment()
    if kind == "net":  # the link of its card: that of a virtual function says little
        hardware.set_link(Path(f"/sys/bus/pci/devices/{address}/physfn").resolve().name, action == "mend")
    elif action == "break":
        fall(hardware, address)
    else:
        hardware.set_fallen(address, False)


if __name__ == "__main__":
    main(*sys.argv[1:])
