# SPDX-License-Identifier: Apache-2.0
"""Running containers that change: what LXD says and what they have, kernel limits, files for the guest."""

import contextlib
import threading
import time
from pathlib import Path

from containerhost import errors
from containerhost.devices.grants import Grant
from containerhost.engines.lxd.live import Live
from containerhost.engines.spec import ContainerSpec, Cpu, Memory, RootDisk
from containerhost.linux import charnodes
from containerhost.linux.sysfs import Host
from containerhost.privileged import Privileged
from tests import levels
from tests.functional.containerhost.test_lxd_devices import DeviceTestCase
from tests.functional.lxd import POOL
from tests.waiting import await_that

MIB = 2**20
HELD = "ulimit -S -n 100; echo $$ > /root/pid; exec sleep 1000"


class LiveTest(DeviceTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.live = Live(self.engine, Privileged())

    def test_a_container_that_has_not_what_lxd_says_is_given_all_anew(self) -> None:
        grants = self.acquired("c1", self.requests(0))
        self.inside("c1", "umount", "/dev/nvidia0")
        self.assertRaises(errors.NotAsGranted, self.engine.verify, "c1", grants)
        spec = ContainerSpec("c1", "", Cpu(1), Memory(64 * MIB), RootDisk(POOL), parts=grants)
        self.live.replace_devices(self.live.read("c1"), spec)
        self.engine.verify("c1", grants)

    def test_what_a_killed_daemon_gave_and_forgot_goes(self) -> None:
        gpu, function = self.ready("c1")
        pid = self.engine.metrics("c1").pid
        (node,) = [node for node in gpu.own_nodes if node.path == "/dev/nvidia0"]
        self.engine.attach("c1", function)
        attaching = threading.Thread(target=self.assertRaises, args=(errors.EngineError, self.engine.attach, "c1", gpu))
        attaching.start()
        await_that(lambda: node.path in Privileged().inside(pid).nodes, "LXD has begun to attach it", pause=0.001)
        self.lxd.daemon.kill()
        attaching.join()
        self.lxd.daemon.start()
        self.assertRaises(errors.NotAsGranted, self.engine.verify, "c1", [function])
        spec = ContainerSpec("c1", "", Cpu(1), Memory(64 * MIB), RootDisk(POOL), parts=(function,))
        self.live.replace_devices(self.live.read("c1"), spec)
        self.engine.verify("c1", [function])
        allowed = Path(f"/sys/fs/cgroup/devices{charnodes.groups(pid)['devices']}/devices.list").read_text()
        self.assertNotIn(f"{node.major}:{node.minor} ", allowed)

    def test_an_interface_that_a_killed_daemon_gave_back_and_did_not_note(self) -> None:
        _, function = self.ready("c1")
        self.engine.attach("c1", function)
        self.engine.client.patch_instance("c1", {"config": {self.host_name_key("c1"): ""}})
        self.engine.detach("c1", function)
        self.assert_back(function)

    def test_the_daemon_is_killed_while_an_interface_leaves(self) -> None:
        _, function = self.ready("c1")
        for later in levels.some("LXD killed while an interface leaves", range(0, 24, 3), (1, 4)):
            self.engine.attach("c1", function)
            detaching = threading.Thread(target=self.detached_or_not, args=("c1", function))
            detaching.start()
            await_that(lambda: Host().is_directory(f"/sys/class/net/{function.netdev.host_name}"), "it left",
                       pause=0.0005)
            time.sleep(later / 1000)
            self.lxd.daemon.kill()
            self.lxd.daemon.start()
            detaching.join()
            self.engine.detach("c1", function)
            self.assert_back(function)

    def detached_or_not(self, name: str, function: Grant) -> None:
        with contextlib.suppress(errors.EngineUnavailable):
            self.engine.detach(name, function)

    def host_name_key(self, name: str) -> str:
        config = self.engine.client.instance(name).instance["config"]
        (key,) = [key for key in config if key.startswith("volatile.net-") and key.endswith(".host_name")]
        return key

    def assert_back(self, function: Grant) -> None:
        self.assertTrue(Host().is_directory(f"/sys/class/net/{function.netdev.host_name}"))
        self.assertNotIn(function.netdev.name, Privileged().inside(self.engine.metrics("c1").pid).netdevs)
        self.assertEqual([], [key for key in self.engine.client.instance("c1").instance["devices"]
                              if key.startswith("net-")])

    def test_limits_of_processes_that_run(self) -> None:
        self.running("c1")
        script = 'setsid sh -c "$0" > /dev/null 2>&1 < /dev/null &'
        self.engine.execute("c1", ["sh", "-c", script, HELD], b"", timeout=30)
        await_that(lambda: self.soft_limit() == "100", "the process has its limit")
        first = self.engine.metrics("c1").pid
        Privileged().raise_limits(first, {"nofile": "200"})
        self.assertEqual("200", self.soft_limit())
        error = self.assertRaises(errors.HostActionFailed, Privileged().raise_limits, first, {"nosuch": "1"})
        self.assertIn("nosuch", str(error))
        self.assertRaises(errors.HostActionFailed, Privileged().raise_limits, 1, {"nofile": "200"})

    def soft_limit(self) -> str | None:
        status, output = self.inside("c1", "sh", "-c", "grep 'open files' /proc/$(cat /root/pid)/limits")
        return output.split()[3] if status == 0 else None
