# SPDX-License-Identifier: Apache-2.0
"""A running server's size changes on its host: its processes go on, its interfaces stay, its devices come and go."""

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from tests.functional.nova import base  # isort: skip (decides how nova runs)

from nova.tests.functional.api.client import OpenStackApiException

from containerhost.engines.contract import Status
from tests import levels
from tests.functional.nova.test_ports import PortServers
from tests.waiting import await_that

MIB, GIB = 2**20, 2**30
TICK = 0.05  # s
LONGEST_GAP = 10.0  # s between two ticks; a container that was stopped, or frozen for good, misses more or all of them
COUNT = f"""echo $$ > /root/pid; i=0
while :; do i=$((i+1)); echo $i $(cut -d' ' -f1 /proc/uptime) >> /root/ticks; sleep {TICK}; done"""
# Replaces containerhost-guest in an image without Python.
LET_GO = """cd /run/containerhost || mkdir -p /run/containerhost && cd /run/containerhost
echo '{"generation": 1}' > ack.json
while ! grep '"announced": {' resources.json > /root/announced; do sleep 0.1; done
rm /heap/ballast; echo '{"generation": 2}' > ack.json"""
BALLAST = "mkdir -p /heap && mount -t tmpfs tmpfs /heap && dd if=/dev/zero of=/heap/ballast bs=1M count=120"


class LiveServers(PortServers):
    options: ClassVar = {(None, "allow_resize_to_same_host"): True}

    def setUp(self) -> None:
        super().setUp()
        self.small = self.flavor(memory_mb=96, disk=1)
        self.large = self.flavor(vcpu=2, memory_mb=192, disk=2)
        self.equipped = self.flavor(vcpu=2, memory_mb=192, disk=2,
                                    pci_passthrough__alias=f"{base.GPU_ALIAS}:1,{base.VF_ALIAS}:1")

    def counting(self, flavor: str) -> Any:
        """A server with a port and a process that counts."""
        self.network = self.port()
        server = self.with_ports(self.network, flavor=flavor)
        self.execute(server, 'setsid sh -c "$0" > /dev/null 2>&1 < /dev/null &', COUNT)
        await_that(lambda: self.ticks(server), "the process counts")
        self.before = self.life(server)
        return server

    def execute(self, server: Any, *script: str) -> None:
        """In the container's control groups, unlike :meth:`inside`."""
        done = self.lxd.engine.execute(self.container(server).name, ["sh", "-c", *script], b"", timeout=60)
        self.assertEqual(0, done.status, done.output)

    def life(self, server: Any) -> tuple[Any, ...]:
        """Return what changes when a container is stopped or its processes are.

        That is its first process and when the kernel started it, the counting process, the interface of its port."""
        pid = self.lxd.engine.metrics(self.container(server).name).pid
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        counting = self.inside(server, "sh", "-c", "cut -d' ' -f1,22 /proc/$(cat /root/pid)/stat").output
        return (pid, started, counting,
                self.inside(server, "cat", "/sys/class/net/eth0/ifindex").output)

    def ticks(self, server: Any) -> list[tuple[int, float]]:
        """Numbers and times (seconds) that the process wrote; the last line may not be whole yet."""
        lines = self.inside(server, "cat", "/root/ticks").output.splitlines()[:-1]
        return [(int(number), float(when)) for number, when in map(str.split, lines)]

    def assert_went_on(self, server: Any) -> None:
        """The same processes have counted without a gap, and still do."""
        seen = self.ticks(server)
        await_that(lambda: len(self.ticks(server)) > len(seen) + 2, "the process goes on counting")
        ticks = self.ticks(server)
        self.assertEqual(list(range(1, len(ticks) + 1)), [number for number, _ in ticks])
        gaps = [later - earlier for (_, earlier), (_, later) in itertools.pairwise(ticks)]
        self.assertLess(max(gaps), LONGEST_GAP)
        self.assertEqual(self.before, self.life(server))
        self.assert_is_wired(server, self.network)

    def assert_is_wired(self, server: Any, *ports: dict[str, Any]) -> None:
        names = {name: mac for name, mac in self.links(server).items() if name.startswith("eth")}
        self.assertEqual({"eth0": ports[0]["mac_address"]}, names)
        self.assert_is_plugged(server, ports[0], f"tap{ports[0]['id']}"[:14])

    def assert_size(self, server: Mapping[str, Any], *expected: int) -> None:
        self.assertEqual(expected, self.size(server))

    def size(self, server: Mapping[str, Any]) -> tuple[int, int, int]:
        """Memory in MiB, CPUs, root disk in GiB, as the running container has them in force."""
        self.assertEqual(Status.RUNNING, self.container(server).status)
        pid = self.lxd.engine.metrics(self.container(server).name).pid
        groups = [line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
        memory = next(path for _, names, path in groups if "memory" in names.split(","))
        limit = int(Path(f"/sys/fs/cgroup/memory{memory}/memory.limit_in_bytes").read_text())
        status = Path(f"/proc/{pid}/status").read_text()
        cores = next(line.split()[1] for line in status.splitlines() if line.startswith("Cpus_allowed:"))
        return limit // MIB, int(cores.replace(",", ""), 16).bit_count(), self.disk(server)

    def disk(self, server: Mapping[str, Any]) -> int:
        return int(self.config(server)["devices"]["root"]["size"]) // GIB

    def accelerators(self, server: Any) -> tuple[int, int]:
        """GPUs and InfiniBand interfaces that it sees."""
        gpus = self.inside(server, "sh", "-c", "ls -d /dev/nvidia[0-9]* 2>/dev/null | wc -l").output
        return int(gpus), sum(name.startswith("ib") for name in self.links(server))

    def refused(self, server: Any, flavor: str, words: str) -> None:
        self.api.post_server_action(server["id"], {"resize": {"flavorRef": flavor}})
        self._wait_for_migration_status(server, ["error"])
        server = self._wait_for_server_parameter(server, {"status": "ACTIVE", "OS-EXT-STS:task_state": None})
        self.assert_told(words, "resize", server)

    def delete(self, server: Any) -> None:
        self._delete_server(server)
        self.assert_nothing_left()


class LiveResizeTest(LiveServers):
    def test_larger_with_devices_confirmed_and_smaller_again(self) -> None:
        server = self.counting(self.small)
        self.resize(server, self.equipped)
        self.assert_size(server, 192, 2, 2)
        self.assertEqual((1, 1), self.accelerators(server))
        self.assertEqual([server["id"]] * 2, list(self.held().values()))
        self.assert_went_on(server)
        self._confirm_resize(server)
        self.assert_went_on(server)
        self.resize(server, self.flavor(memory_mb=96, disk=2))
        self.assert_size(server, 96, 1, 2)
        self.assertEqual(((0, 0), {}), (self.accelerators(server), self.held()))
        self._confirm_resize(server)
        self.assert_went_on(server)
        self.delete(server)

    @levels.exhaustive("KilledLiveResizeTest goes back live, after a kill; PlacedResizeTest reverts")
    def test_reverted_both_ways(self) -> None:
        server = self.counting(self.equipped)
        held = self.held()
        self.resize(server, self.flavor(memory_mb=96, disk=2))
        self.assert_size(server, 96, 1, 2)
        self.assertEqual(((0, 0), {}), (self.accelerators(server), self.held()))
        self.revert(server)
        self.assert_size(server, 192, 2, 2)
        self.assertEqual(((1, 1), held), (self.accelerators(server), self.held()))
        self.assert_went_on(server)
        self.delete(server)

    @levels.exhaustive("a live resize with other sizes and devices remains")
    def test_other_devices_of_the_same_kind(self) -> None:
        """Nova claims others for the new flavor, even if it asks for the same: one interface takes the other's name."""
        server = self.counting(self.equipped)
        before = self.held()
        self.resize(server, self.flavor(vcpu=2, memory_mb=192, disk=2,
                                        pci_passthrough__alias=f"{base.GPU_ALIAS}:1,{base.VF_ALIAS}:2"))
        self.assertEqual((1, 2), self.accelerators(server))
        self.assertEqual(3, len(self.held()))
        self.assertTrue(before.keys().isdisjoint(self.held()))
        self.revert(server)
        self.assertEqual(((1, 1), before), (self.accelerators(server), self.held()))
        self.assert_went_on(server)
        self.delete(server)

    @levels.exhaustive("a resize to less stays, unit/nova/test_liveresize has a guest that does not let go")
    def test_memory_in_use_is_not_taken_before_the_guest_lets_go(self) -> None:
        server = self.counting(self.large)
        self.execute(server, BALLAST)
        smaller = self.flavor(memory_mb=96, disk=2)
        self.refused(server, smaller, "of memory")
        self.assert_size(server, 192, 2, 2)
        self.execute(server, 'setsid sh -c "$0" > /dev/null 2>&1 < /dev/null &', LET_GO)
        self.resize(server, smaller)
        self.assert_size(server, 96, 1, 2)
        self.assert_went_on(server)
        announced, told = (json.loads(self.inside(server, "cat", file).output)
                           for file in ("/root/announced", "/run/containerhost/resources.json"))
        self.assertEqual((1, 192 * MIB, 2, 96 * MIB), (announced["generation"], announced["memory"], *(
            announced["announced"][key] for key in ("generation", "memory"))))
        self.assertEqual((2, 96 * MIB, 1, None), (told["generation"], told["memory"], told["cpus"]["count"],
                                                  told["announced"]))
        self.assertEqual(told, json.loads(self.container(server).labels["containerhost.resources"]), "by the guest API")

    @levels.exhaustive("units show it; PlacedResizeTest has a resize that stops the server")
    def test_what_cannot_be_done_live_stops_the_server_or_is_refused(self) -> None:
        server = self.counting(self.small)
        nested = {"memory_mb": 96, "disk": 1, "lxd__nested_allowed": "true"}
        self.refused(server, self.flavor(**nested, lxd__live_resize="required"), "security.nesting")
        self.assert_went_on(server)
        self.resize(server, self.flavor(**nested))
        self.assertEqual("true", self.config(server)["config"]["security.nesting"])
        self.assertNotEqual(self.before, self.life(server))
        self.assertEqual(Status.RUNNING, self.container(server).status)

    @levels.exhaustive("a live resize with other sizes and devices remains")
    def test_libraries_are_there_before_the_gpu(self) -> None:
        capabilities = {"memory_mb": 96, "lxd__gpu_capabilities": "compute,utility"}
        server = self.counting(self.flavor(**capabilities))
        self.assertEqual(0, self.inside(server, "ls", "/usr/bin/nvidia-smi").status)
        self.assertEqual((0, 0), self.accelerators(server))
        self.resize(server, self.flavor(**capabilities, lxd__live_resize="required",
                                        pci_passthrough__alias=f"{base.GPU_ALIAS}:1"))
        self.assertEqual((1, 0), self.accelerators(server))
        self.assert_went_on(server)
        self.delete(server)

    @levels.exhaustive("units show it; PlacedResizeTest has a resize that stops the server")
    def test_a_stopped_server_takes_any_size_and_stays_off(self) -> None:
        server = self.server(self.small)
        self._stop_server(server)
        self.resize(server, self.flavor(vcpu=2, memory_mb=192, disk=2, lxd__live_resize="required"))
        self.assertEqual(Status.STOPPED, self.container(server).status)
        found = self.config(server)["config"]
        self.assertEqual(("2", str(192 * MIB)), (found["limits.cpu"], found["limits.memory"]))

    def test_the_api_takes_no_other_word(self) -> None:
        error = self.assertRaises(OpenStackApiException, self.flavor, lxd__live_resize="perhaps")
        self.assertEqual(400, error.response.status_code)
