# SPDX-License-Identifier: Apache-2.0
"""Test changes of VMs on Docker that are there, and what monitoring reports of them."""

import base64
import contextlib
import itertools
import re
from collections.abc import Iterator
from unittest import mock

from containerhost.engines.docker.engine import DockerEngine
from containerhost.errors import EngineTimeout
from onedriver.monitor import Type
from tests import levels
from tests.functional import drivercontract
from tests.functional_one.front_end import FrontEnd
from tests.functional_one.vms import Machine
from tests.functional_onedock.base import CLEANUP, POWEROFF, RESUME, SUSPEND, OnedockCase
from tests.functional_onedock.test_parts import addressed
from tests.waiting import await_that

CALLS = 6  # more than a revert makes of any kind
PINNED = ("<TOPOLOGY><PIN_POLICY>THREAD</PIN_POLICY></TOPOLOGY>"
          "<NUMA_NODE><CPUS>0</CPUS><MEMORY_NODE_ID>0</MEMORY_NODE_ID></NUMA_NODE>")


class ChangesTest(OnedockCase):
    def limits(self) -> tuple[int, int, str]:
        found = self.inspect(Machine())["HostConfig"]
        return found["CpuQuota"], found["Memory"], found["CpusetCpus"]

    def test_resize_of_a_running_vm_and_of_one_that_is_off(self) -> None:
        machine = self.deployed(Machine(devices=(self.gpus[0],)))
        before = self.pid(machine)
        self.ok("resize", machine.changed(cpu="1.5", memory=256))
        self.assertEqual((150_000, 256 << 20), self.limits()[:2])
        self.assertEqual("268435456\n", self.shell(machine, "cat /sys/fs/cgroup/memory/memory.limit_in_bytes"))
        self.assertEqual(before, self.pid(machine))
        self.ok("resize", machine.changed(memory=64))
        self.ok("cancel", machine, lcm=POWEROFF)
        self.ok("deploy", machine.changed(cpu="0.5", memory=96), lcm=RESUME)
        self.assertEqual((50_000, 96 << 20), self.limits()[:2])
        self.refused("of its new size; nothing was changed", "resize", self.filled(machine))
        self.assertEqual(96 << 20, self.limits()[1])

    def filled(self, machine: Machine) -> Machine:
        """Uses more memory than it is to have."""
        self.shell(machine, "mkdir -p /dev/shm; head -c 33554432 /dev/zero > /dev/shm/much")
        return machine.changed(memory=8)

    def test_pinned_and_free_again(self) -> None:
        machine = self.deployed(Machine(more=PINNED))
        self.assertEqual("0", self.limits()[2])
        told = self.inside(machine, "cat", "/proc/self/status")
        for words in ("Cpus_allowed_list:\t0\n", "Mems_allowed_list:\t0\n"):
            self.assertIn(words, told)
        self.ok("resize", machine.changed(more=""))
        self.assertNotEqual("0", self.limits()[2])
        self.assertEqual(100_000, self.limits()[0])

    def test_snapshots_bring_what_was_written_back_and_nothing_else(self) -> None:
        machine = self.deployed(Machine(devices=(self.gpus[0],), nics=(0,), context=addressed("10.1.0.5")))
        self.shell(machine, "echo old > /file")
        for _ in range(2):
            self.assertEqual("snap-0\n", self.ok("snapshot_create", machine, "0"))
        self.shell(machine, "echo new > /file")
        self.ok("snapshot_revert", machine.changed(memory=192), "snap-0")
        self.assertEqual("old\n", self.inside(machine, "cat", "/file"))
        self.assertEqual(192 << 20, self.limits()[1])
        self.assertEqual("/dev/nvidia0\n", self.inside(machine, "ls", "/dev/nvidia0"))
        self.assertIn("10.1.0.5/24", self.inside(machine, "ip", "addr"))
        for _ in range(2):
            self.ok("snapshot_delete", machine, "snap-0")
        self.refused("no snapshot snap-0", "snapshot_revert", machine, "snap-0")
        self.refused("is not a snapshot", "snapshot_revert", machine, "../../x")
        self.ok("reset", machine)
        self.assertEqual("old\n", self.inside(machine, "cat", "/file"))

    def test_a_revert_that_fails_anywhere_leaves_the_vm_with_a_root(self) -> None:
        """At the first call of each kind, or at each: Docker did it, but its answer did not come in time."""
        machine = self.deployed(Machine(devices=(self.gpus[0],), nics=(0,)))
        self.shell(machine, "echo old > /file")
        self.ok("snapshot_create", machine, "0")
        failed = 0
        methods = levels.some("late call of a revert",
                              ("stop", "create", "rename", "update_devices", "start", "delete"), (1, 2, 4))
        for method in methods:
            for number in levels.some(f"late {method}", range(1, CALLS), (0,)):
                self.shell(machine, "echo new > /file")
                with late(method, number):
                    result = self.node.act("snapshot_revert", machine, "snap-0")
                self.ok("deploy", machine, lcm=RESUME)
                self.assertIn("one-1", [state.name for state in self.engine.containers()])
                content = self.inside(machine, "cat", "/file")
                self.assertIn(content, ("old\n", "new\n"), f"{method} {number}")
                self.assertEqual("/dev/nvidia0\n", self.inside(machine, "ls", "/dev/nvidia0"))
                if result.status == 0:
                    self.assertEqual("old\n", content)
                    break
                failed += 1
                told = self.node.probe("vm/status").out
                self.assertEqual(1, told.count("VM=["), told)
        self.assertGreaterEqual(failed, len(methods))
        self.ok("snapshot_revert", machine, "snap-0")
        self.assertEqual(["one-1"], [state.name for state in self.engine.containers()])

    def test_containers_of_others_under_names_that_reverts_use_are_left_alone(self) -> None:
        api = self.node.docker.daemon.api()
        others = ("one-1-old", "one-1-anew")
        for other in others:
            api.create_container("polite", name=other)
        machine = self.deployed()
        self.ok("cancel", machine, lcm=CLEANUP)
        self.assertEqual(set(others), {state.name for state in self.engine.containers()})
        for other in others:
            api.remove_container(other)

    @levels.exhaustive("a revert that fails anywhere stays")
    def test_a_revert_that_was_killed_halfway_is_gone_on_with(self) -> None:
        machine = self.deployed()
        self.engine.stop("one-1", timeout=60, force=True)
        self.engine.rename("one-1", "one-1-anew")
        self.ok("deploy", machine, lcm=RESUME)
        self.assertEqual(["one-1"], [state.name for state in self.engine.containers()])
        self.engine.stop("one-1", timeout=60, force=True)
        self.engine.rename("one-1", "one-1-old")
        self.ok("deploy", machine, lcm=RESUME)
        self.assertEqual(["one-1"], [state.name for state in self.engine.containers()])

    def test_a_new_context_is_seen_at_once(self) -> None:
        machine = self.deployed(Machine(nics=(0,), context=addressed("10.1.0.5")))
        changed = machine.changed(context=(*addressed("10.1.0.9"), ("ETH0_DNS", "10.1.0.1")))
        self.ok("reconfigure", changed, "sdb", "/var/lib/one//datastores/0/1/disk.2")
        self.assertIn("ETH0_IP='10.1.0.9'", self.inside(machine, "cat", "/context/context.sh"))
        self.assertEqual("nameserver 10.1.0.1\n", self.inside(machine, "cat", "/etc/resolv.conf"))
        shown = self.inside(machine, "ip", "addr")
        self.assertIn("10.1.0.9/24", shown)
        self.assertNotIn("10.1.0.5", shown)


@contextlib.contextmanager
def late(method: str, number: int) -> Iterator[None]:
    """The call of that number to one of the engine's methods is done, and ends as one that took too long."""
    real, calls = getattr(DockerEngine, method), itertools.count(1)

    def called(engine: DockerEngine, *arguments: object, **more: object) -> object:
        done = real(engine, *arguments, **more)
        if next(calls) == number:
            raise EngineTimeout(f"{method} took too long")
        return done

    with mock.patch.object(DockerEngine, method, called):
        yield


class ProbesTest(drivercontract.ProbesContract, OnedockCase):
    def test_the_host_and_its_vms(self) -> None:
        machine = self.deployed(Machine(devices=(self.gpus[0],), nics=(0,), context=addressed("10.1.0.5")))
        system = self.node.probe("host/system")
        self.assertEqual((0, ""), (system.status, system.reason))
        reported = [line for line in system.out.splitlines() if line.startswith("PCI=[")]
        self.assertEqual(len(self.gpus) + len(self.vfs), len(reported), system.out)
        self.assertIn('HYPERVISOR="onedock"\n', system.out)
        self.assertRegex(system.out, 'DOCKER_VERSION="docker [0-9.]+')
        self.assertIn("USEDCPU=", self.node.probe("host/monitor").out)
        for _ in range(2):
            told = self.node.probe("vm/monitor")
            self.assertEqual((0, ""), (told.status, told.reason))
        values = base64.b64decode(re.search('ID="1".*MONITOR="(.*)"', told.out)[1]).decode()
        for words in ('CPU="', 'GPU_COUNT="1"', 'NETRX="', 'MEMORY="'):
            self.assertIn(words, values)
        self.assertNotIn('MEMORY="0"', values)
        for action, lcm, state in (("save", SUSPEND, "SUSPENDED"), ("restore", 21, "RUNNING"),
                                   ("cancel", POWEROFF, "POWEROFF")):
            self.ok(action, machine, lcm=lcm)
            self.assertIn(f'VM=[ ID="1", DEPLOY_ID="one-1", STATE="{state}" ]\n', self.node.probe("vm/status").out)
        self.assertEqual("", self.node.probe("vm/monitor").out.strip())

    def test_a_front_end_is_told(self) -> None:
        front_end = self.useFixture(FrontEnd())
        self.deployed()
        self.addCleanup(self.node.stop_monitoring)
        started = self.node.start_monitoring(front_end.configuration())
        self.assertEqual((0, ""), (started.status, started.err))
        await_that(lambda: 'STATE="RUNNING"' in "".join(front_end.texts(Type.STATE_VM)), "its state is told")
        await_that(lambda: front_end.texts(Type.MONITOR_VM), "its metrics are told")
        self.assertEqual((0, ""), self.node.stop_monitoring()[::2])
