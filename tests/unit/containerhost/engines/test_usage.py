# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import fixtures
import testtools

from containerhost.engines.contract import Metrics, Status
from containerhost.engines.docker import usage as docker
from containerhost.engines.lxd import usage as lxd
from containerhost.linux.sysfs import Host

ID = "ab" * 32
NET = ("Inter-|   Receive                            |  Transmit\n face |bytes packets errs drop fifo frame compressed "
       "multicast|bytes packets errs drop fifo colls carrier compressed\n"
       "    lo: 9 9 0 0 0 0 0 0 9 9 0 0 0 0 0 0\n  eth0: 100 2 3 4 0 0 0 0 500 6 7 8 0 0 0 0\n")
VERSION_1 = {"cpuacct/docker/{}/cpuacct.usage": "7000", "devices/docker/{}/cgroup.procs": "77\n42\n",
             "memory/docker/{}/memory.usage_in_bytes": "5000", "memory/docker/{}/memory.max_usage_in_bytes": "9000",
             "memory/docker/{}/memory.stat": "cache 1\ntotal_inactive_file 1000\nswap 3\n",
             "pids/docker/{}/pids.current": "2"}
VERSION_2 = {"system.slice/docker-{}.scope/cpu.stat": "usage_usec 7\nuser_usec 1\n",
             "system.slice/docker-{}.scope/cgroup.procs": "42\n", "system.slice/docker-{}.scope/memory.current": "5000",
             "system.slice/docker-{}.scope/memory.stat": "anon 1\ninactive_file 1000\n",
             "system.slice/docker-{}.scope/memory.peak": "9000", "system.slice/docker-{}.scope/pids.current": "2",
             "system.slice/docker-{}.scope/memory.swap.current": "3"}


class UsageTest(testtools.TestCase):
    def host(self, files: dict[str, str]) -> Host:
        root = Path(self.useFixture(fixtures.TempDir()).path)
        for name, text in {f"sys/fs/cgroup/{name.format(ID)}": text for name, text in files.items()}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        (root / "proc/42/net").mkdir(parents=True)
        (root / "proc/42/net/dev").write_text(NET)
        return Host(root)

    def test_of_either_version_of_control_groups(self) -> None:
        for files in (VERSION_1, VERSION_2):
            self.check(docker.read(self.host(files), ID, Status.RUNNING))

    def test_of_lxc_whose_init_has_a_group_of_its_own(self) -> None:
        for files, group, monitor in ((VERSION_1, "docker/{}", "memory/"),
                                      (VERSION_2, "system.slice/docker-{}.scope", "")):
            found = {name.replace(group, "lxc.payload.c1"): text for name, text in files.items()
                     if not name.endswith("cgroup.procs")} | {f"{monitor}lxc.monitor.c1/cgroup.procs": "41\n"}
            for children, tell in (("42 ", self.check), ("42 43 ", self.assertIsNone)):
                host = self.host(found | {"../../../proc/41/task/41/children": children})
                tell(lxd.read(host, "c1", Status.RUNNING))
                self.assertIsNone(lxd.read(host, "c2", Status.RUNNING))

    def test_first_process_of_this_daemon(self) -> None:
        for group in ("memory/", ""):
            host = self.host({f"{group}lxc.monitor.c1/cgroup.procs": "41\n", "../../../proc/41/task/41/children": "42 ",
                              "../../../proc/41/cmdline": "[lxc monitor] /var/lib/lxd/containers c1\0"})
            self.assertEqual([42, None, None], [lxd.first_process(host, "c1", home)
                                                for home in ("/var/lib/lxd", "/var/lib/incus", "https://other")])

    def check(self, found: Metrics | None) -> None:
        assert found is not None
        self.assertEqual((42, 2, 7000, 4000, 9000, 3),
                         (found.pid, found.processes, found.cpu_time, found.memory, found.memory_peak, found.swap))
        (interface,) = found.interfaces
        self.assertEqual(("eth0", 100, 2, 3, 4, 500, 6, 7, 8),
                         (interface.name, interface.received_bytes, interface.received_packets,
                          interface.received_errors, interface.received_dropped, interface.sent_bytes,
                          interface.sent_packets, interface.sent_errors, interface.sent_dropped))

    def test_first_process_need_not_have_the_lowest_number(self) -> None:
        """The host's numbers begin anew after the largest one, and a tenant can make namespaces in its own."""
        numbers = {1042: "1042 1", 42: "42 7", 43: "43 8 1"}
        for group in ("devices/docker/{}", "system.slice/docker-{}.scope"):
            host = self.host({f"{group}/cgroup.procs": "43\n42\n1042\n"} | {
                f"../../../proc/{pid}/status": f"Name:\tx\nNSpid:\t{found}\n" for pid, found in numbers.items()})
            self.assertEqual(1042, docker.first_process_of(host, ID))

    def test_one_that_has_ended_has_none(self) -> None:
        self.assertIsNone(docker.read(self.host({}), ID, Status.RUNNING))
        host = self.host(VERSION_1 | {"devices/docker/{}/cgroup.procs": ""})
        self.assertIsNone(docker.read(host, ID, Status.RUNNING))
