# SPDX-License-Identifier: Apache-2.0
"""GPUs that the elastic service takes from containers on a real daemon, and gives back."""

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import fixtures
from click.testing import CliRunner, Result

from containerhost import errors
from containerhost.allocation.refusals import Request
from containerhost.allocation.states import State
from containerhost.allocation.store import AllocationStore
from containerhost.elastic.gpus import EngineGpus
from containerhost.elastic.service import ManagedEngine, Options, Service
from containerhost.elastic.state import StateFile
from containerhost.engines import gpubounds
from containerhost.engines.gpubounds import GpuBounds
from containerhost.engines.lxd.live import Live
from containerhost.guest import resources
from containerhost.guest.guestfiles import GuestFiles
from containerhost.guest.guestnotice import GuestNotice
from containerhost.inventory.scan import HostView
from containerhost.inventory.taints import TaintFile
from containerhost.linux.sysfs import Host
from containerhost.operator import cli
from containerhost.privileged import Privileged
from tests import levels
from tests.conformance.engine import frame
from tests.conformance.engine.frame import ENXIO, TIMEOUT
from tests.fakehost.control import FakeHostControl
from tests.functional import kmsg
from tests.functional.containerhost.base import LxdTestCase
from tests.functional.holder import Holder
from tests.waiting import await_that
from tools.units import confined

NOW = "containerhost.elastic.gpurounds.WELL_TIME"


class ElasticGpusCase(frame.DeviceFrame, LxdTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.home = Path(self.useFixture(fixtures.TempDir()).path)
        self.files = GuestFiles(self.engine.pid, Privileged())
        self.first, self.second = self.gpus
        self.control = FakeHostControl.from_environment()
        for gpu in self.gpus:
            self.addCleanup(TaintFile(Host()).untaint, gpu.id)
        self.addCleanup(self.control.say, kmsg.LOADED)

    def service(self, **options: Any) -> Service:
        """Return a service that gives back at once what is in order."""
        live, privileged = Live(self.engine, Privileged()), Privileged()
        self.useFixture(fixtures.MockPatch(NOW, 0.0))
        managed = ManagedEngine(self.engine, live, GuestNotice(self.files, 0),
                                EngineGpus(self.engine, live, privileged, self.store.directory))
        return Service({"lxd": managed}, Options(locks=self.store.directory, **options), StateFile(self.home / "state"))

    def member(self, least: int = 1) -> None:
        """Run a container with both GPUs."""
        grants = self.allocator.acquire([Request(gpu.id) for gpu in self.gpus], self.consumer())
        labels = {self.label: "of-c1", gpubounds.LABEL: gpubounds.mark(GpuBounds(least))}
        self.engine.create(resources.with_document(self.spec(parts=grants, labels=labels)))
        self.engine.start("c1")

    def acknowledge(self, generation: int) -> None:
        self.files.write("c1", resources.ACKNOWLEDGED, json.dumps({"generation": generation}).encode())

    def told(self) -> dict[str, Any]:
        return json.loads(self.files.read("c1", resources.FILE) or b"{}")

    def ids(self, document: dict[str, Any]) -> set[str]:
        return {device["id"] for device in document["devices"]}

    def taint(self, gpu: Any) -> None:
        TaintFile(Host()).taint(gpu.id, "its fan is replaced")

    def state(self, gpu: Any) -> State:
        return self.store.records()[gpu.id].state

    def rounds_until(self, service: Service, state: State) -> None:
        def done() -> bool:
            service.round()
            return self.state(self.second) is state

        await_that(done, f"it is {state}", pause=0.2)

    def nodes(self) -> set[str]:
        return {node for node in ("nvidia0", "nvidia1", "nvidiactl")
                if self.inside("c1", "ls", f"/dev/{node}")[0] == 0}

    def command(self, *words: str) -> Result:
        return CliRunner().invoke(cli.main, [*words, "--owners", str(self.store.directory)])


class ElasticGpusTest(ElasticGpusCase):
    def test_tainted_gpu_goes_after_the_guest_has_let_go_and_comes_back_untainted(self) -> None:
        self.member()
        pid, service = self.engine.pid("c1"), self.service(notice=600.0)
        service.round()
        self.assertEqual(({self.first.id, self.second.id}, None), (self.ids(self.told()), self.told()["announced"]))
        self.acknowledge(self.told()["generation"])
        self.taint(self.second)
        service.round()
        announced = self.told()["announced"]
        self.assertEqual({self.first.id}, self.ids(announced))
        self.assertEqual(self.first.uuid, announced["environment"]["CUDA_VISIBLE_DEVICES"])
        self.assertEqual({"nvidia0", "nvidia1", "nvidiactl"}, self.nodes())
        self.acknowledge(announced["generation"])
        service.round()
        self.assertEqual({"nvidia0", "nvidiactl"}, self.nodes())
        self.assertNotEqual(0, self.inside("c1", "sh", "-c", "mknod /n c 195 1 && cat /n")[0])
        self.assertEqual((announced["generation"], {self.first.id}, None), (
            self.told()["generation"], self.ids(self.told()), self.told()["announced"]))
        self.assertEqual([State.ATTACHED, State.DETACHED], [self.state(gpu) for gpu in self.gpus])
        self.assertEqual({("change", "acknowledged"): 1}, dict(service.done))
        (row,) = service.plan()
        self.assertEqual({"present": [self.first.id], "least": 1, "most": 2,
                          "detached": {self.second.id: "tainted by the operator: its fan is replaced"}}, row["gpus"])
        self.assertRaises(errors.DeviceError, self.allocator.acquire, [Request(self.second.id)], self.consumer("c2"))
        self.assertEqual("", self.engine.held(self.gpus).get(self.second.id, ""))
        TaintFile(Host()).untaint(self.second.id)
        self.assertRaises(errors.DeviceHeld, self.allocator.acquire, [Request(self.second.id)], self.consumer("c2"))
        service.round()
        self.assertEqual({"nvidia0", "nvidia1", "nvidiactl"}, self.nodes())
        self.assertIn(ENXIO, self.inside("c1", "cat", "/dev/nvidia1")[1])
        self.assertEqual((pid, {self.first.id, self.second.id}), (self.engine.pid("c1"), self.ids(self.told())))
        self.assertEqual([State.ATTACHED] * 2, [self.state(gpu) for gpu in self.gpus])
        self.engine.verify("c1", self.allocator.held(self.consumer()))

    def test_drain_ends_and_a_sick_gpu_is_reset_while_its_container_goes_on(self) -> None:
        self.member()
        service = self.service()
        self.control.say(kmsg.xid(self.second.id, 79))
        self.assertIn("holds it", self.command("scrub", self.second.id).output)
        service.round()
        self.assertEqual(State.DETACHED, self.state(self.second))
        drained = self.command("drain", self.second.id, "--reason", "is repaired", "--timeout", "0")
        self.assertEqual((0, True), (drained.exit_code, "is drained" in drained.output), drained.output)
        resets = self.control.resets().count(self.second.id)
        self.assertIn("it was reset", self.command("scrub", self.second.id).output)
        self.assertEqual(resets + 1, self.control.resets().count(self.second.id))
        self.assertEqual((State.DETACHED, self.consumer()), (
            self.state(self.second), self.store.records()[self.second.id].consumer))
        service.round()
        self.assertEqual(State.DETACHED, self.state(self.second))  # still tainted
        TaintFile(Host()).untaint(self.second.id)
        service.round()
        self.assertEqual({"nvidia0", "nvidia1", "nvidiactl"}, self.nodes())

    def test_never_below_the_least(self) -> None:
        self.member()
        service = self.service()
        self.taint(self.first)
        self.control.say(kmsg.xid(self.second.id, 79))
        for _ in range(2):
            service.round()
        self.assertEqual([State.ATTACHED, State.DETACHED], [self.state(gpu) for gpu in self.gpus])  # the sick one goes
        self.assertEqual({"nvidia0", "nvidiactl"}, self.nodes())

    def test_container_that_keeps_all_is_left_alone(self) -> None:
        self.member(least=2)
        service, before = self.service(), self.engine.client.instance("c1").instance
        self.taint(self.second)
        service.round()
        self.assertEqual(before, self.engine.client.instance("c1").instance)
        self.assertEqual({}, dict(service.steps))

    def test_gpu_in_use_stays_until_it_is_not(self) -> None:
        self.member()
        service = self.service(notice=0.0)
        service.round()
        self.acknowledge(self.told()["generation"])
        node = self.second.nodes[0]
        holder = self.useFixture(Holder(node.path, (node.major, node.minor)))
        self.taint(self.second)
        for _ in range(3):
            service.round()
        self.assertEqual(({("change", "in use"): 1}, None), (dict(service.done), self.told()["announced"]))
        self.assertEqual((State.ATTACHED, {"nvidia0", "nvidia1", "nvidiactl"}), (self.state(self.second), self.nodes()))
        holder.end()
        again = self.service(notice=0.0)  # another one does not wait a minute before it tries again
        for _ in range(2):
            again.round()
        self.assertEqual((State.DETACHED, {"nvidia0", "nvidiactl"}), (self.state(self.second), self.nodes()))

    def test_container_starts_with_what_is_in_order_and_takes_all_with_it_when_it_ends(self) -> None:
        self.member()
        service = self.service()
        self.taint(self.second)
        service.round()
        requests = [Request(gpu.id) for gpu in self.gpus]
        self.engine.stop("c1", timeout=TIMEOUT, force=True)
        TaintFile(Host()).untaint(self.second.id)
        self.control.say(kmsg.xid(self.first.id, 79))
        with self.assertRaisesRegex(errors.SpecError, "keep 3 GPUs"):
            self.allocator.leave_out(requests, self.consumer(), 3)
        present = self.allocator.leave_out(requests, self.consumer(), 1)
        self.assertEqual([self.second.id], [request.address for request in present])
        grants = self.allocator.acquire(present, self.consumer())
        self.engine.update_devices("c1", grants)
        self.engine.start("c1")
        self.engine.verify("c1", grants)
        self.assertEqual([State.DETACHED, State.ATTACHED], [self.state(gpu) for gpu in self.gpus])
        service.round()
        self.assertEqual({self.second.id}, self.ids(self.told()))
        self.engine.delete("c1")
        self.assertEqual((), self.allocator.release(self.consumer()))
        self.assertEqual({}, self.store.records())


@levels.exhaustive("a kill between announcement and detachment stays",
                   tests=("test_killed_at_each_step_of_taking_and_giving",))
class KilledTest(ElasticGpusCase):
    """The program as its unit runs it: with no more rights than these."""

    def started(self) -> "subprocess.Popen[bytes]":
        with (self.home / "log").open("ab") as log:
            found = subprocess.Popen(
                [*confined("containerhost-elastic"), sys.executable, "-c",
                 "from containerhost.operator.cli import main; main()", "elastic", "run", "--engine",
                 f"lxd={self.daemon.socket}", "--state", str(self.home / "state"), "--owners",
                 str(self.store.directory), "--notice", "600", "--interval", "0.5"], stdout=log, stderr=log)
        self.addCleanup(found.wait, TIMEOUT)
        self.addCleanup(found.kill)
        return found

    def test_killed_between_announcement_and_detachment(self) -> None:
        self.member()
        first = self.started()
        await_that(lambda: self.told().get("devices"), "it is told what it has")
        self.acknowledge(self.told()["generation"])
        self.taint(self.second)
        await_that(lambda: self.told().get("announced"), "the announcement")
        first.kill()
        first.wait(TIMEOUT)
        announced = self.told()["announced"]
        self.acknowledge(announced["generation"])
        self.assertEqual(State.ATTACHED, self.state(self.second))
        second = self.started()
        await_that(lambda: self.state(self.second) is State.DETACHED and not self.told()["announced"],
                   "the second one goes on")
        self.assertEqual({"nvidia0", "nvidiactl"}, self.nodes())
        TaintFile(Host()).untaint(self.second.id)
        await_that(lambda: self.ids(self.told()) == {self.first.id, self.second.id}, "it comes back")
        self.assertEqual({"nvidia0", "nvidia1", "nvidiactl"}, self.nodes())
        second.send_signal(signal.SIGTERM)
        self.assertEqual(0, second.wait(TIMEOUT))

    def test_killed_at_each_step_of_taking_and_giving(self) -> None:
        """A call that changes something is made, and the process then killed."""
        self.member()
        calls = ((AllocationStore, "detach"), (AllocationStore, "attach"), (type(self.engine), "detach"),
                 (type(self.engine), "attach"), (Live, "relabel"), (StateFile, "write"))
        for owner, name in levels.some("elastic GPUs killed", calls, (0, 2, 5)):
            with self.subTest(f"{owner.__name__}.{name}"):
                real = getattr(owner, name)

                def killed(*words: Any, real: Any = real) -> None:
                    real(*words)
                    raise KeyboardInterrupt

                for change, expected in ((self.taint, {"nvidia0", "nvidiactl"}), (
                        lambda gpu: TaintFile(Host()).untaint(gpu.id), {"nvidia0", "nvidia1", "nvidiactl"})):
                    change(self.second)
                    with mock.patch.object(owner, name, killed), contextlib.suppress(KeyboardInterrupt):
                        self.service().round()
                    service = self.service()
                    for _ in range(3):
                        service.round()
                    self.assertEqual(expected, self.nodes())
                    present = {gpu.id for gpu in self.gpus if self.state(gpu) is State.ATTACHED}
                    self.assertEqual((present, {}), (self.ids(self.told()), dict(service.steps)))
                    self.engine.verify("c1", self.allocator.held(self.consumer(), HostView()))
