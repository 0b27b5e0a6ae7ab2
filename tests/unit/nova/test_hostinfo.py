# SPDX-License-Identifier: Apache-2.0
import datetime
import re
from pathlib import Path

import fixtures
import testtools

from containerhost.linux.sysfs import Host
from nova_lxd_ext.host import architectures, hostinfo

# How python-openstackclient takes the line apart (openstackclient/compute/v2/hypervisor.py).
UPTIME = re.compile(r"\s*(.+)\sup\s+(.+),\s+(.+)\susers?,\s+load average:\s(.+)")


class TestHostInfo(testtools.TestCase):
    def host(self, **files):
        root = Path(self.useFixture(fixtures.TempDir()).path)
        for name, text in files.items():
            path = root / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return Host(root)

    def test_uptime(self):
        now = datetime.datetime(2026, 1, 2, 10, 8, 1)
        for seconds, expected in ((59.5, "0:00"), (3725.0, "1:02"), (90000.0, "1 day,  1:00"),
                                  (867900.0, "10 days,  1:05")):
            host = self.host(proc__uptime=f"{seconds} 1.00\n", proc__loadavg="0.25 0.50 12.75 2/300 4711\n")
            found = UPTIME.match(hostinfo.uptime(host, now))
            self.assertEqual(("10:08:01", expected, "0", "0.25, 0.50, 12.75"), found.groups())

    def test_cpu_stats(self):
        stat = "cpu  100 20 30 4000 50 6 7 0 0 0\ncpu0 1 1 1 1 1 1 1\n"
        for expected, files in (
                (2900, {"proc__cpuinfo": "processor: 0\ncpu MHz\t\t: 2900.123\n"}),
                (3100, {"proc__cpuinfo": "cpu MHz : 2900.1\n",
                        "sys__devices__system__cpu__cpu0__cpufreq__scaling_cur_freq": "3100000\n"}),
                (0, {"proc__cpuinfo": "BogoMIPS : 50.00\n"}),
                (0, {})):
            found = hostinfo.cpu_stats(self.host(proc__stat=stat, **files))
            tick = 10_000_000
            self.assertEqual({"user": 120 * tick, "kernel": 43 * tick, "idle": 4000 * tick, "iowait": 50 * tick,
                              "frequency": expected}, found)

    def test_version_number(self):
        for text, expected in (("5.0.2", 5000002), ("5.21.1 LTS", 5021001), ("6.1", 6001000), ("6.0.4-1~deb", 6000004),
                               ("dev", 0)):
            self.assertEqual(expected, hostinfo.version_number(text))
        self.assertGreater(hostinfo.version_number("5.21.0"), hostinfo.version_number("5.3.9"))

    def test_architectures(self):
        for name, expected in (("x86_64", "x86_64"), ("amd64", "x86_64"), ("AMD64", "x86_64"), ("arm64", "aarch64"),
                               ("i386", "i686"), ("armhf", "armv7l"), ("martian", "martian")):
            self.assertEqual(expected, architectures.canonical(name))
        self.assertEqual([("aarch64", "lxd", "exe"), ("armv7l", "lxd", "exe")],
                         hostinfo.supported_instances(("aarch64", "armv7l", "martian")))
