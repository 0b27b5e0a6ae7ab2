# SPDX-License-Identifier: Apache-2.0
"""Print, as JSON, what NVML and a scan say of the emulated host "small", in a process of its own.

The mock reads its configuration once for each process. Devices are those of a described /sys and /proc, NVML's answers
come from the library that LD_LIBRARY_PATH names.
"""

import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from unittest import mock

from containerhost.devices.model import Kind
from containerhost.inventory.scan import scan
from containerhost.linux.sysfs import Host
from containerhost.vendors.nvidia import nvml
from containerhost.vendors.nvidia.vendor import Nvidia
from tests.fakehost import description, tree


def main() -> None:
    """:param argv: addresses of the GPUs that the driver has"""
    with tempfile.TemporaryDirectory() as directory:
        tree.write(description.load("small"), Path(directory))
        host = Host(Path(directory))
        host.live = True
        with mock.patch.object(nvml, "_bound", lambda: tuple(sys.argv[1:])), \
                mock.patch.object(Host, "node_fault", return_value=None):
            found = nvml.query()
            gpus = {device.id: device for device in scan(host).devices if device.kind is Kind.GPU}
            usage = Nvidia.usage()
    print(json.dumps({
        "nvml": {address: dataclasses.asdict(gpu) | {"slices": len(gpu.slices)} for address, gpu in found.items()},
        "links": [[*sorted(pair), count] for pair, count in nvml.links_between(found).items()],
        "gpus": {name: {"model": gpu.model, "uuid": gpu.uuid, "memory": gpu.memory, "health": gpu.health,
                        "notes": gpu.notes} for name, gpu in gpus.items()},
        "usage": {name: dataclasses.asdict(use) for name, use in usage.items()}}))


if __name__ == "__main__":
    main()
