# SPDX-License-Identifier: Apache-2.0
"""What every container engine must do alike: the same lines, run on a real LXD and on a real Docker.

A test case mixes these in beside its engine's own, which bring the daemon and say how things are done there. Import
the module, not its classes: each would else be a test of the importing module.
"""

import dataclasses
import os
import shutil
import stat
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import fixtures
import testtools
from testtools.matchers import Contains

from containerhost import errors
from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.choice import Request
from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.devices.model import CharNode, Device, Kind, Role
from containerhost.devices.scan import HostView, scan
from containerhost.engines import Status
from containerhost.grants import GpuGrant, Grant, GrantOptions
from containerhost.linux.poll import wait_until
from containerhost.privileged import Privileged
from containerhost.spec import ContainerSpec, Cpu, Memory, Mount
from containerhost.vendors import OWN
from containerhost.vendors.base import GpuVendor
from tests.functional.lxd import memlock
from tests.waiting import await_that

MiB = 1 << 20
ENXIO, EPERM = "No such device or address", "Operation not permitted"
TIMEOUT = 60  # s; for what ends at once where it works

Impossible = tuple[type[Exception], Callable[[], object]]


class EngineFrame(testtools.TestCase):
    """What an engine's own base class gives.

    :cvar label: the mark that :meth:`spec` gives a container
    :ivar engine: an engine on the tests' own daemon
    """

    label: ClassVar[str]
    engine: Any

    def spec(self, name: str = "c1", **more: Any) -> ContainerSpec:
        """Of a small container."""
        raise NotImplementedError

    def inside(self, name: str, *command: str) -> tuple[int, str]:
        """Exit status and output of a command in the container."""
        raise NotImplementedError

    def up(self, name: str = "c1") -> None:
        """Wait until its first program can be asked to end."""
        raise NotImplementedError

    def left(self, name: str = "c1") -> list[str]:
        """What is left on the host of a container that was deleted."""
        raise NotImplementedError

    def directory(self) -> Path:
        """One whose content a container may be shown."""
        raise NotImplementedError

    def running(self, name: str = "c1", **more: Any) -> str:
        self.engine.create(self.spec(name, **more))
        self.engine.start(name)
        return name


class LifeContract(EngineFrame):
    """:cvar last_words: what the first program prints when it is asked to end
    :cvar still_runs: what is said of one that does not end
    """

    last_words: ClassVar[bytes]
    still_runs: ClassVar[str]

    def deaf(self) -> None:
        """Container c1 runs, and its first program does not answer."""
        raise NotImplementedError

    def impossible(self) -> tuple[Impossible, ...]:
        """What this engine refuses beside what all do; container c1 is there."""
        raise NotImplementedError

    def test_from_nothing_to_running_and_back(self):
        self.engine.create(self.spec())
        self.assertEqual(Status.STOPPED, self.engine.container("c1").status)
        self.assertIsNone(self.engine.container("c1").last_used)
        self.assertEqual(b"", self.engine.console_log("c1"))
        self.engine.start("c1")
        (state,) = self.engine.containers()
        self.assertEqual(("c1", Status.RUNNING, {self.label: "of-c1"}), (state.name, state.status, dict(state.labels)))
        self.assertIsNotNone(self.engine.container("c1").last_used)
        self.engine.delete("c1")
        self.assertEqual((), self.engine.containers())
        self.assertEqual([], self.left())

    def test_power_calls_may_be_repeated(self):
        self.running()
        for action, status in (
            (lambda: self.engine.start("c1"), Status.RUNNING),
            (lambda: self.engine.freeze("c1"), Status.FROZEN),
            (lambda: self.engine.unfreeze("c1"), Status.RUNNING),
            (lambda: self.engine.stop("c1", timeout=TIMEOUT, force=True), Status.STOPPED),
            (lambda: self.engine.start("c1"), Status.RUNNING),
        ):
            action()
            action()
            self.assertEqual(status, self.engine.container("c1").status)

    def test_soft_stop_asks_the_first_program(self):
        for prepare in (lambda: None, lambda: self.engine.freeze("c1")):
            self.running()
            self.up()
            prepare()
            self.engine.stop("c1", timeout=TIMEOUT)
            self.assertEqual(Status.STOPPED, self.engine.container("c1").status)
            self.assertIn(self.last_words, self.engine.console_log("c1"))
            self.engine.delete("c1")

    def test_soft_stop_of_one_that_does_not_answer_says_that_it_still_runs(self):
        self.deaf()
        self.addCleanup(self.engine.stop, "c1", timeout=TIMEOUT, force=True)
        error = self.assertRaises(errors.EngineTimeout, self.engine.stop, "c1", timeout=1)
        self.assertIn(self.still_runs, str(error))
        self.assertEqual(Status.RUNNING, self.engine.container("c1").status)

    def test_restart_gives_a_new_first_process(self):
        self.running()
        for force in (False, True):
            self.up()
            before = self.engine.metrics("c1").pid
            self.engine.restart("c1", timeout=TIMEOUT, force=force)
            self.assertNotIn(self.engine.metrics("c1").pid, (before, None))

    def test_delete_works_from_every_state(self):
        def frozen() -> None:
            self.running()
            self.engine.freeze("c1")

        for prepare in (lambda: None, lambda: self.engine.create(self.spec()), self.running, frozen):
            prepare()
            self.engine.delete("c1")
            self.assertFalse(self.engine.exists("c1"))
        self.assertEqual([], self.left())

    def test_two_deletions_at_once_both_succeed(self):
        self.running()
        failures = []

        def delete() -> None:
            try:
                self.engine.delete("c1")
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=delete) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(([], False), (failures, self.engine.exists("c1")))

    def test_what_cannot_be_is_told_apart_and_changes_nothing(self):
        self.engine.create(self.spec())
        for wanted, action in (
            (errors.EngineNotFound, lambda: self.engine.start("c2")),
            (errors.EngineNotFound, lambda: self.engine.container("c2")),
            (errors.EngineNotFound, lambda: self.engine.console_log("c2")),
            (errors.EngineNotFound, lambda: self.engine.create(self.spec("c2", image="no-such-image"))),
            (errors.EngineConflict, lambda: self.engine.create(self.spec())),
            (errors.EngineError, lambda: self.engine.create(self.spec("not/a name"))),
            (errors.EngineConflict, lambda: self.engine.verify("c1", ())),
            *self.impossible(),
        ):
            self.assertRaises(wanted, action)
        self.assertEqual(["c1"], [state.name for state in self.engine.containers()])


class LimitContract(EngineFrame):
    def test_limits_hold_inside(self):
        self.running(cpu=Cpu(1, cores=frozenset({0}), share=50), limits={"nofile": "1024"})
        self.assertRegex(self.inside("c1", "cat", "/proc/1/status")[1], r"Cpus_allowed_list:\s0\n")
        self.assertRegex(self.inside("c1", "cat", "/proc/1/limits")[1], r"Max open files\s+1024\s+1024")

    def test_fork_bomb_ends_at_the_limit_of_processes(self):
        """One that could not take the host with it either: it is of 200 processes, which end by themselves."""
        self.running(processes=60)
        self.running("c2")
        bomb = "i=0; while [ $i -lt 200 ]; do sleep 120 > /dev/null 2>&1 < /dev/null & i=$((i+1)); done; echo all"
        done = self.engine.execute("c1", ["sh", "-c", bomb], b"", timeout=TIMEOUT)
        self.assertNotEqual((0, b"all\n"), (done.status, done.stdout))
        self.assertLessEqual(self.engine.metrics("c1").processes, 60)
        self.assertEqual(0, self.engine.execute("c2", ["sh", "-c", "exit 0"], b"", timeout=TIMEOUT).status)
        self.engine.delete("c1")
        self.assertFalse(self.engine.exists("c1"))

    def test_command_that_closes_its_outputs_is_killed_at_its_time_limit(self):
        self.running()
        script = "exec > /dev/null 2>&1; exec sleep 599"
        self.assertRaises(errors.EngineTimeout, self.engine.execute, "c1", ["sh", "-c", script], b"", timeout=3)
        await_that(lambda: "sleep 599" not in self.inside("c1", "ps")[1], "the command is killed")

    def test_memory_is_not_more_than_asked(self):
        self.running(memory=Memory(32 * MiB))
        status, output = self.inside("c1", "sh", "-c",
                                     "x=$(head -c 67108864 /dev/zero | tr '\\0' a); echo survived")
        self.assertNotIn("survived", output)
        self.assertNotEqual(0, status)

    def test_mounts_arrive_read_only(self):
        source = self.directory() / "drive"
        source.mkdir(exist_ok=True)
        (source / "meta").write_text("hello\n")
        self.running(mounts=(Mount("context", str(source), "/context"),))
        self.assertEqual((0, "hello\n"), self.inside("c1", "cat", "/context/meta"))
        self.assertNotEqual(0, self.inside("c1", "touch", "/context/more")[0])


class DeviceFrame(EngineFrame):
    """:ivar gpus, vfs: of the emulated host
    :ivar before: every device as it is to be again after the test
    """

    privileged: ClassVar[type[Privileged]] = Privileged

    def setUp(self) -> None:
        super().setUp()
        self.store = AllocationStore(Path(self.useFixture(fixtures.TempDir()).path))
        self.allocator = DeviceAllocator(self.store, HostView, self.privileged(), self.engine.held)
        devices = scan().devices
        self.gpus = [device for device in devices if device.kind is Kind.GPU]
        self.vfs = [device for device in devices if device.role is Role.VF]
        self.before = picture()
        self.addCleanup(self._everything_is_back)

    def _everything_is_back(self) -> None:
        """Runs before the fixture deletes containers, so it deletes them itself."""
        names = [container.name for container in self.engine.containers()]
        for name in names:
            self.engine.delete(name)
        for record in self.store.records().values():
            self.assertEqual((), self.allocator.release(record.consumer))
        self.all_back()
        for name in names:
            self.assertEqual([], self.left(name))

    def all_back(self) -> None:
        # The kernel's interfaces are there at once, what the emulated /sys tells of them a moment later.
        await_that(lambda: self.before == picture(), "every device is what it was")

    def consumer(self, name: str = "c1") -> Consumer:
        return Consumer("test", self.engine.name, name, f"uuid-of-{name}")

    def requests(self, number: int = 0, **options: Any) -> tuple[Request, Request]:
        """For a GPU and a VF."""
        return (Request(self.gpus[number].id),
                Request(self.vfs[number].id, GrantOptions(netdev_name="ib0", memlock=memlock(), **options)))

    def taken(self, number: int = 0, name: str = "c1") -> tuple[Grant, ...]:
        return self.allocator.acquire(self.requests(number), self.consumer(name))

    def acquired(self, name: str, requests: tuple[Request, ...]) -> tuple[Grant, ...]:
        """And the container runs with them."""
        grants = self.allocator.acquire(requests, self.consumer(name))
        self.running(name, parts=grants)
        return grants

    def ready(self, name: str = "c1", number: int = 0) -> tuple[Grant, ...]:
        """A running container that has no device, made so that it can get those of ``number``; and their grants."""
        raise NotImplementedError


class DeviceContract(DeviceFrame):
    def someones(self, gpu: Device) -> None:
        """A container ``someone``, not of this project's making, may use the GPU."""
        raise NotImplementedError

    def test_vendor_with_nodes_in_a_directory_of_its_own(self):
        directory = Path("/dev/testaccel")
        directory.mkdir()
        self.addCleanup(shutil.rmtree, directory)
        numbers = {"x0": (1, 7), "x1": (1, 5)}
        for name, number in numbers.items():
            os.mknod(directory / name, stat.S_IFCHR | 0o600, os.makedev(*number))
        other = type("Other", (GpuVendor,), {"name": "other", "nodes": ("testaccel/x*",)})
        self.useFixture(fixtures.MonkeyPatch("containerhost.vendors.load", lambda: (*OWN, other)))
        grants = []
        for name, number in numbers.items():
            card = dataclasses.replace(self.gpus[0], id=f"0000:{name}:00.0", plugin="other", vendor_id="1234")
            grants.append(Grant(card, (CharNode(f"/dev/testaccel/{name}", *number),),
                                gpu=GpuGrant(card.address, None, "1234")))
        self.running(parts=grants[:1])
        self.engine.verify("c1", grants[:1])
        self.engine.attach("c1", grants[1])
        self.engine.verify("c1", grants)
        error = self.assertRaises(errors.NotAsGranted, self.engine.verify, "c1", grants[1:])
        self.assertIn("/dev/testaccel/x0", str(error))
        for grant in grants:
            self.engine.detach("c1", grant)
        self.engine.verify("c1", ())

    def nodes(self, name: str) -> set[str]:
        return set(self.inside(name, "find", "/dev", "-type", "c")[1].split())

    def test_one_gpu_and_one_vf_and_no_others(self):
        self.running("plain")
        grants = self.acquired("c1", self.requests(0))
        self.engine.verify("c1", grants)
        granted = {node.path for grant in grants for node in grant.nodes}
        self.assertEqual(granted, self.nodes("c1") - self.nodes("plain"))
        _, names = self.inside("c1", "sh", "-c", "cd /dev && find nvidia* dri infiniband -type c | sort")
        uverbs = next(node.path for node in self.vfs[0].nodes if "uverbs" in node.path).rpartition("/")[2]
        self.assertEqual(["dri/card0", "dri/renderD128", "infiniband/rdma_cm", f"infiniband/{uverbs}", "nvidia-modeset",
                          "nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidiactl"], names.split())
        self.assertThat(self.inside("c1", "cat", "/sys/class/net/ib0/type")[1], Contains("32"))
        # A node that is there and allowed leads to a driver that is not; one that is made up is refused.
        self.assertThat(self.inside("c1", "cat", "/dev/nvidia0")[1], Contains(ENXIO))
        self.assertThat(self.inside("c1", "sh", "-c", "mknod /nvidia1 c 195 1 && cat /nvidia1")[1], Contains(EPERM))

    def test_two_containers_reach_each_other_over_their_vfs(self):
        for number, name in enumerate(("c1", "c2")):
            self.acquired(name, self.requests(number))
            pid = str(self.engine.metrics(name).pid)
            for words in (["address", "add", f"10.9.0.{number + 1}/24", "dev", "ib0"], ["link", "set", "ib0", "up"]):
                subprocess.run(["nsenter", "--target", pid, "--net", "ip", *words], check=True)
        self.assertEqual(0, self.inside("c1", "ping", "-c", "1", "-W", "30", "10.9.0.2")[0])

    def test_verify_sees_too_much_and_too_little(self):
        grants = self.acquired("c1", self.requests(0))
        error = self.assertRaises(errors.NotAsGranted, self.engine.verify, "c1", grants[:1])
        self.assertThat(str(error), Contains("uverbs"))
        self.inside("c1", "sh", "-c", "umount /dev/nvidia0; rm /dev/nvidia0")
        error = self.assertRaises(errors.NotAsGranted, self.engine.verify, "c1", grants)
        self.assertThat(str(error), Contains("/dev/nvidia0 is missing"))

    def test_verify_follows_no_link_of_the_tenant(self):
        grants = self.acquired("c1", self.requests(0))
        self.inside("c1", "mv", "/dev/infiniband", "/dev/elsewhere")
        self.inside("c1", "ln", "-s", "/dev/infiniband", "/dev/infiniband")
        error = self.assertRaises(errors.NotAsGranted, self.engine.verify, "c1", grants)
        self.assertThat(str(error), Contains("rdma_cm is missing"))

    def test_every_start_gives_the_devices_again(self):
        grants = self.acquired("c1", self.requests(0))
        self.up()
        for force in (False, True):
            self.engine.restart("c1", timeout=TIMEOUT, force=force)
            self.engine.verify("c1", grants)

    def test_a_stopped_container_keeps_no_interface(self):
        self.acquired("c1", self.requests(0))
        self.engine.stop("c1", timeout=TIMEOUT, force=True)
        await_that(lambda: scan().get(self.vfs[0].id).netdev == self.vfs[0].netdev, "the interface is back")

    def test_power_off_and_on_after_the_host_named_interfaces_anew(self):
        self.acquired("c1", self.requests(0))
        self.engine.stop("c1", timeout=TIMEOUT, force=True)
        self.privileged().rename_netdev(self.vfs[0].netdev, "other0")
        # The kernel's /sys has the new name at once, the emulated one a moment later.
        self.assertTrue(wait_until(lambda: scan().get(self.vfs[0].id).netdev == "other0", TIMEOUT))
        grants = self.taken()
        self.engine.update_devices("c1", grants)
        self.engine.start("c1")
        self.engine.verify("c1", grants)

    def test_attach_and_detach_while_it_runs(self):
        gpu, vf = self.ready()
        for grant in (gpu, vf):
            self.engine.attach("c1", grant)
        self.engine.verify("c1", (gpu, vf))
        self.assertThat(self.inside("c1", "cat", "/dev/nvidia0")[1], Contains(ENXIO))
        self.engine.restart("c1", timeout=TIMEOUT, force=True)
        self.engine.verify("c1", (gpu, vf))
        self.engine.detach("c1", vf, [gpu])
        self.assertEqual((), self.allocator.release_device(vf.device.id, self.consumer(), self.engine.pid("c1")))
        self.engine.verify("c1", [gpu])
        self.engine.detach("c1", gpu, [])
        self.engine.verify("c1", [])
        self.engine.restart("c1", timeout=TIMEOUT, force=True)
        self.engine.verify("c1", [])

    def test_interface_that_the_guest_renamed_is_told_and_stays(self):
        _, grant = self.ready()
        self.engine.attach("c1", grant)

        def rename(name, new):
            pid = str(self.engine.metrics("c1").pid)
            for words in (["down"], ["name", new]):
                subprocess.run(["nsenter", "--target", pid, "--net", "ip", "link", "set", name, *words], check=True)

        rename("ib0", "mine")
        error = self.assertRaises(errors.HostActionFailed, self.engine.detach, "c1", grant)
        self.assertIn("call it ib0 again, or stop the container, then try again", str(error))
        self.assertIn("mine", self.privileged().inside(self.engine.metrics("c1").pid).netdevs)
        rename("mine", "ib0")
        self.engine.detach("c1", grant)
        self.assertNotIn("ib0", self.privileged().inside(self.engine.metrics("c1").pid).netdevs)

    def test_detach_of_one_of_two_leaves_the_other_whole(self):
        """LXD 5.0 takes nvidiactl away, or leaves it dangling, with either of two GPUs."""
        grants = self.acquired("c1", tuple(Request(gpu.id) for gpu in self.gpus[:2]))
        for gone, stays in ((0, 1), (1, 0)):
            self.engine.detach("c1", grants[gone], [grants[stays]])
            self.engine.verify("c1", [grants[stays]])
            self.engine.attach("c1", grants[gone])
            self.engine.verify("c1", grants)
        self.engine.detach("c1", grants[0], [grants[1]])
        self.engine.detach("c1", grants[1], [])
        self.engine.verify("c1", [])

    def test_hot_plugged_devices_come_back_from_every_end(self):
        for end in (lambda: self.engine.stop("c1", timeout=TIMEOUT),
                    lambda: self.engine.stop("c1", timeout=TIMEOUT, force=True),
                    lambda: self.engine.restart("c1", timeout=TIMEOUT),
                    lambda: self.engine.delete("c1")):
            for grant in self.ready():
                self.engine.attach("c1", grant)
            end()
            self.engine.delete("c1")
            self.assertEqual((), self.allocator.release(self.consumer()))
            self.all_back()

    def test_what_anothers_container_uses_is_refused(self):
        self.someones(self.gpus[0])
        error = self.assertRaises(errors.DeviceHeld, self.taken)
        self.assertThat(str(error), Contains("someone"))
        self.assertEqual({}, self.store.records())


def picture() -> dict[str, tuple[object, ...]]:
    """What a device must be again after it was given back."""
    return {device.id: (device.netdev, device.mac, device.rdma, device.nodes, device.health, device.host_use)
            for device in scan().devices}
