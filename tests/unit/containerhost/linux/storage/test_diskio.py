# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import fixtures
import testtools

from containerhost.linux.storage.diskio import DiskIo, disk_io
from containerhost.linux.sysfs import Host

V1 = {
    "proc/7/cgroup": "3:cpu,cpuacct:/x\n4:blkio:/a/lxc.payload.one-1/system.slice/x\n0::/a/lxc.payload.one-1\n",
    "sys/fs/cgroup/blkio/a/lxc.payload.one-1/blkio.throttle.io_service_bytes_recursive":
        "8:0 Read 10\n8:0 Write 20\n8:0 Sync 1\n8:0 Total 30\n8:16 Read 5\nTotal 35\n",
    "sys/fs/cgroup/blkio/a/lxc.payload.one-1/blkio.throttle.io_serviced_recursive":
        "8:0 Read 3\n8:0 Write 4\n8:16 Read 1\n8:16 Write 0\nTotal 8\n"}
V2 = {
    "proc/7/cgroup": "0::/lxc.payload.one-1/init.scope\n",
    "sys/fs/cgroup/lxc.payload.one-1/io.stat":
        "8:0 rbytes=10 wbytes=20 rios=3 wios=4 dbytes=9 dios=9\n253:1 rbytes=5 wbytes=0 rios=1 wios=0 dbytes=0\n"}


class DiskIoTest(testtools.TestCase):
    def host(self, files: dict[str, str]) -> Host:
        directory = Path(self.useFixture(fixtures.TempDir()).path)
        for name, text in files.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(text)
        return Host(directory)

    def test_both_versions_of_control_groups(self) -> None:
        for files in (V1, V2):
            self.assertEqual(DiskIo(15, 20, 4, 4), disk_io(self.host(files), 7))

    def test_where_nothing_is_counted(self) -> None:
        for files in ({}, {"proc/7/cgroup": V1["proc/7/cgroup"]}, {"proc/7/cgroup": V2["proc/7/cgroup"]}):
            self.assertIsNone(disk_io(self.host(files), 7))
        empty = {name: text if name.startswith("proc") else "" for name, text in V2.items()}
        self.assertEqual(DiskIo(0, 0, 0, 0), disk_io(self.host(empty), 7))
