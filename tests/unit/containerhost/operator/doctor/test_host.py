# SPDX-License-Identifier: Apache-2.0
"""Kernel, control groups, ids, locked memory and NUMA nodes."""

import shutil

from containerhost.devices.findings import Severity
from containerhost.operator.doctor import cgroups, idmaps, kernel, memlock, numa
from tests.unit.containerhost.operator.doctor.cases import DoctorCase


class KernelTest(DoctorCase):
    def test_nothing_is_known_of_a_captured_tree(self) -> None:
        self.assertEqual([], self.findings(kernel.check))

    def test_no_user_namespaces(self) -> None:
        self.tree.write("/proc/sys/user/max_user_namespaces", "0\n")
        self.assertEqual(["user namespaces"], self.subjects(kernel.check))
        self.tree.write("/proc/sys/user/max_user_namespaces", "63432\n")
        self.assertEqual([], self.findings(kernel.check))

    def test_no_seccomp(self) -> None:
        self.tree.write("/proc/sys/kernel/ostype", "Linux\n")
        self.assertEqual(["seccomp"], self.subjects(kernel.check))
        self.tree.write("/proc/sys/kernel/seccomp/actions_avail", "kill_process allow\n")
        self.assertEqual([], self.findings(kernel.check))

    def test_apparmor_that_is_off(self) -> None:
        self.tree.write("/sys/module/apparmor/parameters/enabled", "N\n")
        self.assertEqual([Severity.NOTE], [finding.severity for finding in self.findings(kernel.check)])
        self.tree.write("/sys/module/apparmor/parameters/enabled", "Y\n")
        self.assertEqual([], self.findings(kernel.check))


class CgroupsTest(DoctorCase):
    def test_every_controller_of_version_2(self) -> None:
        self.tree.write("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory hugetlb pids rdma\n")
        self.assertEqual([], self.findings(cgroups.check))

    def test_missing_controller_of_either_version(self) -> None:
        self.tree.write("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu memory\n")
        found = self.findings(cgroups.check)
        self.assertEqual(["pids"], [finding.subject for finding in found])
        self.assertIn("CONFIG_CGROUP_PIDS", found[0].remedy)
        self.tree.path("/sys/fs/cgroup/cgroup.controllers").unlink()
        for name in ("cpu", "cpuset", "memory"):
            self.tree.path(f"/sys/fs/cgroup/{name}").mkdir()
        self.assertEqual(["pids", "version"], self.subjects(cgroups.check))

    def test_hybrid(self) -> None:
        self.tree.write("/sys/fs/cgroup/unified/cgroup.controllers", "pids memory\n")
        for name in ("cpu", "cpuset"):
            self.tree.path(f"/sys/fs/cgroup/{name}").mkdir()
        self.assertEqual([("version", Severity.NOTE)],
                         [(finding.subject, finding.severity) for finding in self.findings(cgroups.check)])


class DaemonCase(DoctorCase):
    def daemon(self, name: str, locked: str = "unlimited", capabilities: str = "0", ids: str = "0 0 4294967295"
               ) -> None:
        self.tree.write("/proc/77/comm", f"{name}\n")
        self.tree.write("/proc/77/limits", f"Limit  Soft Limit  Hard Limit  Units\n"
                        f"Max processes             100   100  processes\n"
                        f"Max locked memory         65536                {locked}              bytes\n")
        self.tree.write("/proc/77/status", f"Name:\t{name}\nCapEff:\t{capabilities}\n")
        self.tree.write("/proc/77/uid_map", f"{ids}\n")


class MemlockTest(DaemonCase):
    def test_daemon_that_may_give_little(self) -> None:
        self.daemon("lxd", "8388608")
        found = self.findings(memlock.check)
        self.assertEqual([("lxd", Severity.WRONG)], [(finding.subject, finding.severity) for finding in found])
        self.assertIn("8388608 bytes", found[0].problem)

    def test_daemon_that_may_raise_it(self) -> None:
        for how in ({"locked": "unlimited"}, {"locked": "65536", "capabilities": "000001ffffffffff"}):
            self.daemon("incusd", **how)
            self.assertEqual([], self.findings(memlock.check), how)

    def test_capability_of_another_user_namespace_does_not_count(self) -> None:
        self.daemon("dockerd", "65536", "000001ffffffffff", "0 100000 65536")
        self.assertEqual(["dockerd"], self.subjects(memlock.check))

    def test_nobody_asks_for_it_without_rdma(self) -> None:
        self.daemon("lxd", "65536")
        for name in ("infiniband", "infiniband_verbs"):
            for path in self.tree.path("/sys/devices").rglob(name):
                shutil.rmtree(path)
        self.assertEqual([], self.findings(memlock.check))

    def test_other_processes(self) -> None:
        self.daemon("bash", "65536")
        self.assertEqual([], self.findings(memlock.check))

    def test_helpers_of_a_daemon(self) -> None:
        """Each container has a monitor, whose name is the daemon's, with the limits of the day when it was started."""
        for name, command, found in (
                ("lxd", "[lxc monitor] /var/lib/lxd/containers c1", 0), ("lxd", "lxd\0forkproxy\0" "4711", 0),
                ("incusd", "/opt/incus/bin/incusd\0forkdns", 0), ("lxd", "lxd", 1), ("lxd", "lxd\0--group\0lxd", 1),
                ("dockerd", "/usr/sbin/dockerd\0-H\0fd://", 1)):
            self.daemon(name, "65536")
            self.tree.write("/proc/77/cmdline", f"{command}\0")
            self.assertEqual(found, len(self.findings(memlock.check)), command)


class IdMapsTest(DaemonCase):
    def setUp(self) -> None:
        super().setUp()
        self.daemon("lxd")

    def ids(self, *rows: str) -> list[tuple[str, Severity]]:
        for file in idmaps.FILES:
            self.tree.write(file, "\n".join(rows) + "\n")
        return [(finding.subject, finding.severity) for finding in self.findings(idmaps.check)]

    def test_room(self) -> None:
        self.assertEqual([], self.ids("alice:100000:65536", "root:1000000:1000000000"))
        self.assertEqual([], self.ids("0:1000000:1000000000"))

    def test_too_few_ids(self) -> None:
        for rows, severity in ((("alice:100000:65536",), Severity.WRONG), (("root:100000:1000",), Severity.WRONG),
                               (("root:100000:65536",), Severity.NOTE)):
            self.assertEqual([(file, severity) for file in idmaps.FILES], self.ids(*rows), rows)

    def test_odd_lines(self) -> None:
        self.assertEqual([], self.ids("", "root", "root:x:y", "::", "root:1:9999999999"))

    def test_without_files_or_lxd(self) -> None:
        self.assertEqual([], self.findings(idmaps.check))
        self.daemon("dockerd")
        self.assertEqual([], self.ids("alice:1:2"))


class NumaTest(DoctorCase):
    def test_well(self) -> None:
        self.assertEqual([], self.findings(numa.check))

    def test_device_of_unknown_node(self) -> None:
        (self.tree.function("0000:3b:00.0") / "numa_node").write_text("-1\n")
        self.assertEqual(["0000:3b:00.0"], self.subjects(numa.check))

    def test_node_without_memory(self) -> None:
        self.tree.write("/sys/devices/system/node/node1/meminfo", "Node 1 MemTotal: 0 kB\n")
        self.assertEqual({"NUMA node 1": "it has processors but no memory: what runs there works on the memory of "
                          "another node"}, self.problems(numa.check))

    def test_sockets_that_are_shown_as_one_node(self) -> None:
        self.tree.path("/sys/devices/system/node/node1").rename(self.tree.root / "away")
        self.assertEqual(["NUMA nodes"], self.subjects(numa.check))
