# SPDX-License-Identifier: Apache-2.0
"""Emulate ``rdma`` as far as the host needs it: the mode of namespaces, and moving a device into one.

Runs without site-packages, so it imports nothing but the client of the control socket.
"""

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3]))

from tests.fakehost.control import FakeHostControl

CONTROL = "/sys/fakehost/control"
MODES = ("shared", "exclusive")
NAMESPACES = pathlib.Path("/run/netns")


def main(arguments: list[str]) -> int:
    host = FakeHostControl(CONTROL)
    try:
        match arguments:
            case ["system", "set", "netns", mode] if mode in MODES:
                host.set_rdma_namespaces(mode == "exclusive")
            case ["dev", "set", ibdev, "netns", name]:
                if not (NAMESPACES / name).exists():
                    print(f'No such namespace "{name}"', file=sys.stderr)
                    return 255
                host.move_rdma(ibdev)
            case _:
                print(f"the emulated host has no: rdma {' '.join(arguments)}", file=sys.stderr)
                return 255
    except OSError as error:
        print(f"error: {os.strerror(error.errno or 0)}\n{error.strerror}", file=sys.stderr)
        return 255
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
