# SPDX-License-Identifier: Apache-2.0
"""Move a server with a GPU and a virtual function while its program writes files: none of them is lost."""

import dataclasses
import hashlib
import itertools
import json
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from openstack.exceptions import BadRequestException
from testtools.content import text_content

from containerhost.allocation.store import AllocationStore
from tests import levels
from tests.fakehost.control import FakeHostControl
from tests.functional_cloud import stage
from tests.functional_cloud.base import Server, TwoHostsCase
from tools.cloud.configs import HOST
from tools.cloud.engine import POOL
from tools.cloud.layout import SECOND

HOSTS = (HOST, HOST + SECOND)
MICROVERSION = "2.80"
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


@dataclasses.dataclass(frozen=True)
class Moved:
    """:ivar seconds: from the request until nova says that it is done
    :ivar stopped: seconds in which the program wrote nothing
    """

    seconds: float
    stopped: float


class DeviceMovesTest(TwoHostsCase):
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

    def moved(self, server: Server, request: Callable[[], Any], status: str, to: int) -> Moved:
        """Move the server and check that nothing of it is lost.

        :param to: number of the new host
        """
        before = len(self.sums(server))
        began = time.monotonic()
        request()
        self.settled(server.id, status)
        seconds = time.monotonic() - began
        self.assertEqual(HOSTS[to], self.host_of(server))
        server.engine = self.stage.cloud.engines[to]
        self.until_written(server)
        return Moved(round(seconds, 1), round(self.assert_nothing_lost(server, before), 1))

    def migrate(self, server: Server, to: int) -> Moved:
        compute = self.stage.admin.compute
        moved = self.moved(server, lambda: compute.migrate_server(server.id), "VERIFY_RESIZE", to)
        self.tenant.compute.confirm_server_resize(server.id)
        self.settled(server.id, "ACTIVE")
        return moved

    def migrate_live(self, server: Server, to: int) -> Moved:
        compute = self.stage.admin.compute
        return self.moved(server, lambda: compute.live_migrate_server(server.id, block_migration="auto"), "ACTIVE", to)

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

    def notices(self, server: Server) -> list[dict[str, Any]]:
        """Return what its program was told before each stop."""
        return [json.loads(line)["announced"] for line in self.read(server, "notices").splitlines()]

    def migrations(self, server: Server) -> list[dict[str, Any]]:
        """Return the live migrations of the server that are in progress."""
        return self.stage.admin.compute.get(f"/servers/{server.id}/migrations", microversion=MICROVERSION
                                            ).json()["migrations"]

    def there_and_back(self, flavor: str) -> Server:
        (server,) = self.boot_on_first(1, flavor=flavor)
        self.start_writer(server)
        found = {"cold": self.migrate(server, 1)}
        if flavor == stage.FLAVOR_OF_DEVICES:
            self.assert_lives_on(server, 1)
        found["live"] = self.migrate_live(server, 0)
        self.addDetail("moves", text_content("\n".join(f"{flavor}: {kind}: {moved}" for kind, moved in found.items())))
        return server

    def test_nothing_is_lost_there_and_back(self) -> None:
        server = self.there_and_back(stage.FLAVOR_OF_DEVICES)
        self.assert_lives_on(server, 0)
        for notice in self.notices(server):
            self.assertTrue(notice["stop"])
            self.assertLess(time.time() - 600, notice["until"])
        self.assertEqual(2, len(self.notices(server)))

    @levels.exhaustive("is there to compare the stop with that of a server with devices")
    def test_server_without_devices_loses_nothing(self) -> None:
        self.there_and_back(stage.FLAVOR)

    @levels.exhaustive("unit/nova/test_livemigration has each refusal")
    def test_aborted_or_refused_server_runs_on_and_the_old_host_serves_others(self) -> None:
        compute = self.stage.admin.compute
        (server,) = self.boot_on_first(1, flavor=stage.FLAVOR_OF_DEVICES)
        self.start_writer(server)
        (self.root(server) / "deaf").touch()
        compute.live_migrate_server(server.id, block_migration="auto")
        running = self.until("it waits for its guest", lambda: [
            one for one in self.migrations(server) if one["status"] == "running" and self.is_announced(server)])
        compute.delete(f"/servers/{server.id}/migrations/{running[0]['id']}", microversion=MICROVERSION)
        self.until("it was aborted", lambda: not self.migrations(server))
        (self.root(server) / "deaf").unlink()
        self.assert_runs_on(server, 0, "cancelled")
        self.migrate(server, 1)
        (other,) = self.boot_on_first(1, flavor=stage.FLAVOR_OF_DEVICES)
        self.assertEqual(dict.fromkeys(self.devices(), other.container), self.held(0))
        self._delete(other.id)
        hardware, gpu = FakeHostControl.from_environment(), self.stage.cloud.offers[0].addresses[0]
        hardware.remove(gpu)
        try:
            compute.migrate_server(server.id)
            self.assert_runs_on(server, 1, "error")
        finally:
            hardware.restore(gpu)
        self.until("nova has freed what it claimed for that move", lambda: self.begins_to_leave(server))
        self.settled(server.id, "ACTIVE")
        server.engine = self.stage.cloud.engines[0]
        self.assert_runs_on(server, 0, "completed")

    def begins_to_leave(self, server: Server) -> bool:
        """Return whether the scheduler finds another host for the server, which then migrates live."""
        try:
            self.stage.admin.compute.live_migrate_server(server.id, block_migration="auto")
        except BadRequestException:
            return False
        return True

    def is_announced(self, server: Server) -> bool:
        """Return whether the guest has been told of its stop."""
        return server.inside("grep", '"stop": true', "/run/containerhost/resources.json").status == 0

    def assert_runs_on(self, server: Server, host: int, status: str) -> None:
        """Check that the last move of the server came to this status, and that it runs on this host."""
        self.until(f"its move is {status}", lambda: self.last_move(server)["status"] == status)
        self.settled(server.id, "ACTIVE")
        self.assertEqual(HOSTS[host], self.host_of(server))
        self.until_written(server)
        self.assert_nothing_lost(server, 1)
        self.assert_lives_on(server, host)

    def last_move(self, server: Server) -> dict[str, Any]:
        found = self.stage.admin.compute.get("/os-migrations", microversion="2.59", params={"instance_uuid": server.id})
        return max(found.json()["migrations"], key=lambda move: move["id"])
