# SPDX-License-Identifier: Apache-2.0
"""Servers that go on without a GPU while it is repaired."""

from tests.functional.nova.test_pci_health import HealthServers  # isort: skip (decides how nova runs)

import json
from pathlib import Path
from typing import Any, ClassVar

import fixtures
from click.testing import CliRunner

from containerhost.allocation.states import State
from containerhost.allocation.store import AllocationStore
from containerhost.elastic.gpus import EngineGpus
from containerhost.elastic.service import ManagedEngine, Options, Service
from containerhost.elastic.state import StateFile
from containerhost.engines import gpubounds
from containerhost.engines.lxd.live import Live
from containerhost.engines.resizelock import resizing
from containerhost.guest import resources
from containerhost.guest.guestfiles import GuestFiles
from containerhost.guest.guestnotice import GuestNotice
from containerhost.inventory.taints import TaintFile
from containerhost.linux.sysfs import Host
from containerhost.operator.cli import main
from containerhost.privileged import Privileged
from tests import levels
from tests.functional.kmsg import xid
from tests.functional.nova.base import GPU_ALIAS, HOST


class ElasticGpusTest(HealthServers):
    options: ClassVar = {(None, "allow_resize_to_same_host"): True}

    def setUp(self) -> None:
        super().setUp()
        for gpu in self.gpus:
            self.addCleanup(TaintFile(Host()).untaint, gpu)
        self.useFixture(fixtures.MockPatch("containerhost.elastic.gpurounds.WELL_TIME", 0.0))
        self.files = GuestFiles(self.lxd.engine.pid, Privileged())
        self.owners = self.state / "owners"
        self.home = Path(self.useFixture(fixtures.TempDir()).path)
        self.service = self.new_service()

    def new_service(self) -> Service:
        live = Live(self.lxd.engine, Privileged())
        managed = ManagedEngine(self.lxd.engine, live, GuestNotice(self.files, 0),
                                EngineGpus(self.lxd.engine, live, Privileged(), self.owners))
        return Service({"lxd": managed}, Options(notice=600, locks=self.owners), StateFile(self.home))

    def elastic(self, least: str = "1", gpus: int = 2, **more: Any) -> str:
        return self.flavor(**{"hpc__gpus_min": least, "pci_passthrough__alias": f"{GPU_ALIAS}:{gpus}",
                              "hw__numa_nodes": "2", "memory_mb": 128, "vcpu": 2, **more})

    def allocations(self) -> dict[str, State]:
        return {name: record.state for name, record in AllocationStore(self.owners).records().items()}

    def told(self, server: Any) -> set[str]:
        document = json.loads(self.container(server).labels[resources.LABEL])
        return {device["id"] for device in document["devices"]}

    def nodes(self, server: Any) -> set[str]:
        return {f"nvidia{number}" for number in (0, 1)
                if self.inside(server, "ls", f"/dev/nvidia{number}").status == 0}

    def without(self) -> tuple[Any, str, str]:
        """Return a server, the GPU that it has, and the one that was taken from it."""
        server = self.server(self.elastic())
        kept, taken = self.gpus
        TaintFile(Host()).taint(taken, "fan is replaced")
        self.service.round()
        self.assertEqual({kept: State.ATTACHED, taken: State.DETACHED}, self.allocations())
        return server, kept, taken

    def test_server_goes_on_without_gpu_that_stays_its_own(self) -> None:
        server, kept, taken = self.without()
        self.assertEqual(({kept}, {"nvidia0"}), (self.told(server), self.nodes(server)))
        self.assertEqual({gpu: server["id"] for gpu in self.gpus}, self.held())
        before = self.config(server)
        self.restart_compute_service(self.computes[HOST])
        self._run_periodics()
        self.assertEqual((before["config"], before["devices"]), (
            self.config(server)["config"], self.config(server)["devices"]))
        other = self.with_gpu(expected="ERROR")
        TaintFile(Host()).untaint(taken)
        another = self.with_gpu(expected="ERROR")
        self.service.round()
        self.assertEqual(({kept, taken}, {"nvidia0", "nvidia1"}), (self.told(server), self.nodes(server)))
        self.restart_compute_service(self.computes[HOST])
        self.assertEqual({kept: State.ATTACHED, taken: State.ATTACHED}, self.allocations())
        for each in (server, other, another):
            self._delete_server(each)
        self.assert_nothing_left()

    def notified(self) -> list[tuple[str, str]]:
        """Return device and state of those in nova's last notification, after a periodic look; fail without one."""
        self.notifier.reset()
        self._run_periodics()
        (*_, sent) = [each for each in self.notifier.versioned_notifications
                      if each["event_type"] == "device_faults.update"]
        devices = (device["nova_object.data"] for device in sent["payload"]["nova_object.data"]["devices"])
        return [(device["device"], device["state"]) for device in devices]

    def faults(self, server: Any) -> list[str]:
        """Return which devices its container was told to be broken."""
        told = json.loads(self.inside(server, "cat", "/run/containerhost/faults.json").output)
        return [fault.partition(": ")[0] for fault in told["faults"]]

    def scrub(self, gpu: str, status: int) -> None:
        done = CliRunner().invoke(main, ["scrub", gpu, "--owners", str(self.owners)])
        self.assertEqual(status, done.exit_code, done.output)

    def test_gpu_that_falls_off_the_bus_returns_to_its_server_when_it_is_repaired(self) -> None:
        server = self.server(self.elastic())
        kept, fallen = self.gpus
        self._run_periodics()
        self.control.set_fallen(fallen)
        self.control.say(xid(fallen, 79))
        self.service.round()
        without = {kept: State.ATTACHED, fallen: State.DETACHED}
        self.assertEqual((without, {kept}, {"nvidia0"}), (self.allocations(), self.told(server), self.nodes(server)))
        self.assertEqual(([(fallen, "detached")], [fallen]), (self.notified(), self.faults(server)))
        self.scrub(fallen, status=1)
        self.restart_compute_service(self.computes[HOST])
        other = self.with_gpu(expected="ERROR")
        self.control.set_fallen(fallen, False)
        self.service.round()
        self.assertEqual(without, self.allocations())  # its Xid stands until it is reset
        self.scrub(fallen, status=0)
        self.service.round()
        self.assertEqual(({kept: State.ATTACHED, fallen: State.ATTACHED}, {"nvidia0", "nvidia1"}),
                         (self.allocations(), self.nodes(server)))
        self.assertEqual(([], []), (self.notified(), self.faults(server)))
        self.control.set_fallen(fallen)
        self.service.round()
        self._delete_server(server)
        self.assertEqual({fallen: State.BLOCKED}, self.allocations())
        another = self.with_gpu()
        self.assertEqual({kept: State.ATTACHED, fallen: State.BLOCKED}, self.allocations())
        self.control.set_fallen(fallen, False)
        self.scrub(fallen, status=0)
        for each in (other, another):
            self._delete_server(each)
        self.assert_nothing_left()

    @levels.exhaustive("the engines' contract and units show it; one test of nova remains")
    def test_reboot_brings_what_is_in_order_and_end_returns_all(self) -> None:
        server, kept, taken = self.without()
        self._reboot_server(server)
        self.assertEqual(({kept}, {"nvidia0"}), (self.told(server), self.nodes(server)))
        self.assertEqual(State.DETACHED, self.allocations()[taken])
        self._stop_server(server)
        TaintFile(Host()).untaint(taken)
        self.control.say(xid(kept, 79))
        self._start_server(server)
        self.assertEqual({kept: State.DETACHED, taken: State.ATTACHED}, self.allocations())
        self.assertEqual({"nvidia1"}, self.nodes(server))
        self.service.round()
        self.assertEqual({taken}, self.told(server))
        self.api.post_server_action(server["id"], {"reboot": {"type": "HARD"}})  # resets the sick one
        self._wait_for_state_change(server, "ACTIVE")
        self.assertEqual({"nvidia0", "nvidia1"}, self.nodes(server))
        TaintFile(Host()).taint(taken, "fan is replaced")
        self.service.round()
        self._stop_server(server)
        self._delete_server(server)
        self.assertEqual({}, self.allocations())
        TaintFile(Host()).untaint(taken)
        self.assert_nothing_left()

    @levels.exhaustive("the engines' contract and units show it; one test of nova remains")
    def test_server_without_enough_does_not_start(self) -> None:
        server = self.server(self.elastic())
        self._stop_server(server)
        for gpu in self.gpus:
            self.control.say(xid(gpu, 79))
        self.api.post_server_action(server["id"], {"os-start": None})
        self.assert_told("is not healthy", "start", server)
        self.assertEqual(1, list(self.allocations().values()).count(State.ATTACHED))  # the other can be done without
        self._delete_server(server)

    @levels.exhaustive("the engines' contract and units show it; one test of nova remains")
    def test_resize_of_the_tenants_own_meets_the_service(self) -> None:
        server, kept, taken = self.without()
        TaintFile(Host()).untaint(taken)
        name = self.container(server).name
        with resizing(self.owners, name):
            self.service.round()  # another process resizes it: it is checked again
        self.assertEqual({kept}, self.told(server))
        self.files.write(name, resources.ACKNOWLEDGED, b'{"generation": 99}')
        TaintFile(Host()).taint(kept, "its turn")
        self.service.round()
        self.assertEqual({kept, taken}, self.told(server))
        self.files.write(name, resources.ACKNOWLEDGED, json.dumps({"generation": json.loads(
            self.container(server).labels[resources.LABEL])["generation"]}).encode())
        self.service.round()
        self.assertIn(f"lxd/{name}", self.service.steps)
        self.resize(server, self.flavor(vcpu=2, memory_mb=160))
        self.service.round()
        self.assertEqual({}, dict(self.service.steps))
        self.assertEqual((set(), set()), (self.told(server), self.nodes(server)))
        self.assertNotIn(gpubounds.LABEL, self.container(server).labels)
        self._confirm_resize(server)
        self.assertEqual({}, self.allocations())

    @levels.exhaustive("units show the refusal; one test of nova remains")
    def test_more_than_it_has_is_refused(self) -> None:
        server = self.server(self.elastic("3"), expected="ERROR")
        self.assertIn("it must keep 3 GPUs, but has a claim on 2", " ".join(self.reasons(server)))
