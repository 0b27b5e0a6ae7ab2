# SPDX-License-Identifier: Apache-2.0
"""Share a server whose program writes files, with a GPU and a virtual function, and what must hold of it."""

import hashlib
import itertools
import shlex
from pathlib import Path
from typing import Any

from containerhost.allocation.store import AllocationStore
from tests.functional_cloud.base import Server, TwoHostsCase
from tools.cloud.configs import HOST
from tools.cloud.engine import POOL
from tools.cloud.layout import SECOND

HOSTS = (HOST, HOST + SECOND)
CHECKED = 20  # files that must be written before a move, and after it
# Written files are numbered. A file without a sum is written again after a stop. A device that the container may use
# is opened with ENXIO, as nothing is behind an emulated one; what it says otherwise is kept. It knows the present
# resources, whatever their number, and acknowledges what is announced unless there is a file "deaf".
WRITER = r"""#!/bin/sh
resources=/run/containerhost/resources.json
acknowledge() { echo "{\"generation\": $1}" > /run/containerhost/ack.json; }
rm -rf /run/containerhost
mkdir -p /root/written /run/containerhost
acknowledge 100
cd /root/written
touch ../sums
number=$(wc -l < ../sums)
while :; do
    number=$((number + 1))
    head -c 65536 /dev/urandom > $number
    sha256sum $number >> ../sums
    gpu=$(echo /dev/nvidia[0-9]*)
    (: < $gpu) 2>&1 | grep -v "No such device or address" >> ../refused
    grep -l '^32$' /sys/class/net/*/type > /dev/null || echo "$number: no InfiniBand interface" >> ../refused
    notice=$(grep -s '"stop": true' $resources)
    if [ "$notice" ] && [ "$notice" != "$noticed" ] && [ ! -e ../deaf ]; then
        noticed=$notice
        echo "$notice" >> ../notices
        acknowledge $(grep -o '"generation": [0-9]*' $resources | sed 's/.* //' | sort -n | tail -1)
    fi
    sleep 0.1
done
"""


class WriterCase(TwoHostsCase):
    def start_writer(self, server: Server) -> None:
        """Start the program, which init starts again at each boot."""
        script = f"printf %s {shlex.quote(WRITER)} > /root/writer; chmod +x /root/writer; " \
                 "echo ::respawn:/root/writer >> /etc/inittab; kill -HUP 1"
        self.assertEqual(0, server.inside("sh", "-c", script).status)
        self.until_written(server)

    def root(self, server: Server) -> Path:
        return server.engine.directory / "storage-pools" / POOL / "containers" / server.container / "rootfs/root"

    def sums(self, server: Server) -> list[tuple[str, str]]:
        """Return the complete lines of the checksums: number of the file, sum."""
        lines = self.read(server, "sums").splitlines(keepends=True)
        return [(name, digest) for line in lines if line.endswith("\n") for digest, name in (line.split(),)]

    def until_written(self, server: Server) -> None:
        end = len(self.sums(server)) + CHECKED
        self.until("its program writes", lambda: len(self.sums(server)) >= end)

    def assert_nothing_lost(self, server: Server, since: int) -> float:
        """Return the longest time between two files, in seconds.

        :param since: number of files that were there before
        """
        sums = self.sums(server)
        self.assertEqual([str(number) for number in range(1, len(sums) + 1)], [name for name, _digest in sums])
        written = self.root(server) / "written"
        wrong = [name for name, digest in sums if hashlib.sha256((written / name).read_bytes()).hexdigest() != digest]
        self.assertEqual([], wrong)
        times = [(written / name).stat().st_mtime for name, _digest in sums[since - 1:]]
        return max(after - before for before, after in itertools.pairwise(times))

    def held(self, host: int) -> dict[str, str]:
        """Return the host's allocation records: address -> container."""
        owners = self.stage.cloud.nodes[host].owners
        return {device: record.consumer.container for device, record in AllocationStore(owners).records().items()}

    def devices(self) -> set[str]:
        """Return the addresses of what each host offers."""
        return {address for offer in self.stage.cloud.offers for address in offer.addresses}

    def assert_lives_on(self, server: Server, host: int) -> None:
        """Its program, allocation records and Placement say that the server has one host's devices and no others."""
        other = 1 - host
        old = self.stage.cloud.engines[other]
        self.until("its old host has it no more", lambda: not self.held(other)
                   and server.container not in old.client("list", "--format", "csv", "--columns", "n").split())
        self.assertEqual(dict.fromkeys(self.devices(), server.container), self.held(host))
        self.until("Placement has the allocations of one host alone",
                   lambda: self.allocations() == {server.id: self.expected(host)})
        self.assertEqual("", self.read(server, "refused"), "its program uses both devices")

    def read(self, server: Server, name: str) -> str:
        path = self.root(server) / name
        return path.read_text() if path.exists() else ""

    def expected(self, host: int) -> dict[str, dict[str, int]]:
        """Return the allocations of a server; a virtual function is one of its physical function's provider."""
        return {HOSTS[host]: {"VCPU": 1, "MEMORY_MB": 128, "DISK_GB": 1}} | {
            f"{HOSTS[host]}_{offer.addresses[0][:-1].upper()}0": {offer.resource_class: 1}
            for offer in self.stage.cloud.offers}

    def allocations(self) -> dict[str, dict[str, dict[str, int]]]:
        """Return what Placement says: consumer -> provider -> resources. Not atomic: a move may end meanwhile."""
        found: dict[str, dict[str, dict[str, int]]] = {}
        for provider in self.placement("/resource_providers")["resource_providers"]:
            told = self.placement(f"/resource_providers/{provider['uuid']}/allocations")
            for consumer, part in told["allocations"].items():
                found.setdefault(consumer, {})[provider["name"]] = part["resources"]
        return found

    def placement(self, path: str) -> Any:
        return self.stage.admin.placement.get(path, microversion="1.20").json()
