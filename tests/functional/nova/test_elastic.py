# SPDX-License-Identifier: Apache-2.0
"""Servers whose cores come and go, and a live resize of the tenant's own meanwhile."""

import json
from pathlib import Path
from typing import Any, ClassVar

import fixtures

from tests.functional.nova import base  # isort: skip (decides how nova runs)

from containerhost.elastic.service import ManagedEngine, Options, Service
from containerhost.elastic.state import StateFile
from containerhost.engines import bounds
from containerhost.engines.bounds import Range
from containerhost.engines.lxd.live import Live
from containerhost.guest import resources
from containerhost.guest.guestfiles import GuestFiles
from containerhost.guest.guestnotice import GuestNotice
from containerhost.linux.idlist import id_list
from containerhost.linux.sysfs import Host
from containerhost.privileged import Privileged
from tests import levels
from tests.waiting import await_that


class ElasticTest(base.LxdServers):
    options: ClassVar = {(None, "allow_resize_to_same_host"): True}

    def setUp(self) -> None:
        super().setUp()
        if len(id_list(Host().text("/sys/devices/system/cpu/online"))) != 2:
            self.skipTest("the sizes are those of a host with two cores")
        self.elastic = self.flavor(vcpu=2, memory_mb=96, hpc__vcpus_min="1")
        self.files = GuestFiles(self.lxd.engine.pid, Privileged())
        managed = ManagedEngine(self.lxd.engine, Live(self.lxd.engine, Privileged()), GuestNotice(self.files, 0))
        self.service = Service({"lxd": managed}, Options(notice=600, locks=self.state / "owners"),
                               StateFile(Path(self.useFixture(fixtures.TempDir()).path)))

    def cores(self, server: Any) -> int:
        pid = self.lxd.engine.pid(self.container(server).name)
        return len(id_list(Host().fields(f"/proc/{pid}/status")["Cpus_allowed_list"]))

    def document(self, server: Any) -> dict[str, Any]:
        return json.loads(self.container(server).labels[resources.LABEL])

    def rounds_until(self, server: Any, count: int) -> None:
        def done() -> bool:
            self.service.round()
            return self.cores(server) == count

        await_that(done, f"it has {count} cores", pause=0.2)

    def listens(self, server: Any) -> None:
        self.files.write(self.container(server).name, resources.ACKNOWLEDGED, json.dumps(
            {"generation": self.document(server)["generation"]}).encode())

    def test_servers_trade_cores_and_a_resize_to_the_same_bounds_leaves_the_size(self) -> None:
        first, second = self.server(self.elastic), self.server(self.elastic)
        self.rounds_until(second, 1)
        self.assertEqual(1, self.cores(first))
        generation = self.document(first)["generation"]
        self.resize(first, self.flavor(vcpu=2, memory_mb=96, disk=2, hpc__vcpus_min="1"))
        self.assertEqual((1, generation), (self.cores(first), self.document(first)["generation"]))
        self._confirm_resize(first)
        self.assertEqual((1, generation), (self.cores(first), self.document(first)["generation"]))

    @levels.exhaustive("the engines' contract and units show it; one test of nova remains")
    def test_resize_while_the_service_waits_for_the_guest(self) -> None:
        first = self.server(self.elastic)
        self.rounds_until(first, 2)
        self.listens(first)
        self.server(self.elastic)
        self.service.round()
        name = self.container(first).name
        self.assertIn(f"lxd/{name}", self.service.steps)
        self.resize(first, self.flavor(vcpu=1, memory_mb=128))
        self.service.round()
        self.assertEqual({}, self.service.steps)
        self.assertEqual((1, 128 << 20), (self.document(first)["cpus"]["count"], self.document(first)["memory"]))
        self.assertEqual(self.document(first), json.loads(self.files.read(name, resources.FILE) or b""))
        self.assertNotIn(bounds.LABEL, self.container(first).labels)
        self.revert(first)
        self.assertEqual(Range(1, 2), bounds.parse(self.container(first).labels).cores)
        self.rounds_until(first, 1)

    @levels.exhaustive("unit/nova refuses it")
    def test_job_below_its_minimum_is_refused(self) -> None:
        server = self.server(self.flavor(vcpu=2, hpc__vcpus_min="3"), expected="ERROR")
        self.assertIn("from 3 to 2", " ".join(self.reasons(server)))
