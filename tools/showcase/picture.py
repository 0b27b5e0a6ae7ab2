# SPDX-License-Identifier: Apache-2.0
"""Make the manual's picture of a host: ``python -m tools.showcase.picture FILE.png``.

Two sockets, eight GPUs and eight InfiniBand cards (tests/fakehost/hosts/dgx.yaml), emulated; containers and faults are
made up."""

import subprocess
import sys
import tempfile
from pathlib import Path

from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.inventory.scan import scan
from containerhost.linux.sysfs import Host
from tests.fakehost import description, tree

#: Container -> cores that it is pinned to, and its devices.
CONTAINERS = {
    "train-0": ("0-27,112-139", ("0000:1b:00.0", "0000:18:00.1")),
    "train-1": ("28-55,140-167", ("0000:43:00.0", "0000:40:00.1")),
    "inference": ("56-59,168-171", ("0000:9d:00.0",)),
    "mpi-rank-0": ("60-75,172-187", ("0000:ce:00.1", "0000:ce:00.2", "0000:dc:00.1")),
}
SICK, BLOCKED = "0000:c3:00.0", "0000:df:00.0"


def make(root: Path) -> None:
    """Write a host's files as the picture shows it."""
    tree.write(description.load("dgx"), root)
    store, inventory = AllocationStore(root / "var/lib/containerhost/owners"), scan(Host(root))
    (root / "sys/fs/cgroup").mkdir(parents=True)
    for name, (cores, devices) in CONTAINERS.items():
        group = root / f"sys/fs/cgroup/lxc.payload.{name}"
        group.mkdir()
        (group / "cpuset.cpus").write_text(f"{cores}\n")
        store.claim([inventory.get(device) for device in devices], Consumer("nova", "lxd", name, name),
                    inventory.related)
    store.claim([inventory.get(BLOCKED)], Consumer("nova", "lxd", "gone", "gone"), inventory.related)
    store.block(BLOCKED, "process 4711 has it open")
    config = Host(root).root / f"sys/bus/pci/devices/{SICK}/config"
    config.write_bytes(b"\xff" * 64)


def main() -> None:
    file = Path(sys.argv[1]).absolute()
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "host"
        make(root)
        program = "from containerhost.operator.cli import main; main()"
        subprocess.run([sys.executable, "-c", program, "topology", f"--{file.suffix[1:]}", file, "--root", root],
                       check=True)


if __name__ == "__main__":
    main()
