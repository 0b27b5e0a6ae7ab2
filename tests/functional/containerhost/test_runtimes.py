# SPDX-License-Identifier: Apache-2.0
"""Devices of the emulated host in the real Podman, and for plain processes."""

import os
import shutil
import subprocess
from pathlib import Path

import fixtures
import testtools

from containerhost.devices.scan import scan
from containerhost.runtimes import cdi

TIMEOUT = 120  # s
GPU, FUNCTION = "0000:3b:00.0", "0000:5e:00.1"
# No systemd; and a machine may not let its root raise limits, as Podman does by default.
CONFIG = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
netns = "none"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
runtime = "runc"
"""
STORAGE = """
[storage]
driver = "vfs"
graphroot = "{base}/graph"
runroot = "{base}/run"
"""
# Podman looks for specifications in places that cannot be configured.
WITH_SPECIFICATIONS = 'mkdir -p /run/cdi && mount --bind "$0" /run/cdi && exec "$@"'


class Podman(fixtures.Fixture):
    """:ivar environment: makes Podman keep everything below a directory of its own
    :ivar root: of containers that have busybox
    """

    def _setUp(self) -> None:
        base = Path(self.useFixture(fixtures.TempDir(rootdir="/var/tmp")).path)
        self.root = base / "rootfs"
        for directory in ("bin", "dev", "proc", "sys", "etc"):
            (self.root / directory).mkdir(parents=True)
        shutil.copy("/bin/busybox", self.root / "bin/busybox")
        for name in ("sh", "ls", "cat", "sleep", "env"):
            (self.root / "bin" / name).symlink_to("busybox")
        (base / "containers.conf").write_text(CONFIG)
        (base / "storage.conf").write_text(STORAGE.format(base=base))
        self.environment = os.environ | {"CONTAINERS_CONF": f"{base}/containers.conf",
                                         "CONTAINERS_STORAGE_CONF": f"{base}/storage.conf"}
        self.addCleanup(subprocess.run, ["podman", "rm", "--all", "--force", "--time", "0"], env=self.environment,
                        check=True, capture_output=True, timeout=TIMEOUT)


class CdiTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.podman = self.useFixture(Podman())
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)
        self.file = self.directory / "containerhost.json"
        cdi.write(self.file, cdi.specification(scan().devices))

    def run_podman(self, *devices: str) -> subprocess.CompletedProcess[str]:
        options = [f"--device={cdi.KIND}={device}" for device in devices]
        return subprocess.run(
            ["unshare", "--mount", "sh", "-c", WITH_SPECIFICATIONS, self.directory, "podman", "run", "--rm", *options,
             "--rootfs", self.podman.root, "ls", "/dev", "/dev/infiniband", "/dev/dri"],
            env=self.podman.environment, capture_output=True, text=True, timeout=TIMEOUT, check=False)

    def test_podman_takes_devices_by_their_names(self) -> None:
        done = self.run_podman(GPU, FUNCTION)
        self.assertEqual(0, done.returncode, done.stderr)
        found = done.stdout.split()
        self.assertLessEqual({"nvidia0", "nvidiactl", "renderD128", "uverbs1", "rdma_cm"}, set(found))
        self.assertEqual(set(), {"nvidia1", "renderD129", "uverbs2", "umad1", "issm1"} & set(found))

    def test_bad_specifications_stop_no_container(self) -> None:
        self.file.write_bytes(self.file.read_bytes()[:100])
        self.assertNotIn("nvidia0", self.run_podman().stdout.split())
        self.assertIn("dev:", self.run_podman().stdout)
        self.assertIn(f"unresolvable CDI devices {cdi.KIND}={GPU}", self.run_podman(GPU).stderr)
        self.assertEqual("written", cdi.write(self.file, cdi.specification(scan().devices)))
        self.assertIn("nvidia0", self.run_podman(GPU).stdout.split())
        stale = self.file.read_text().replace("/dev/nvidia1", "/dev/nvidia9")
        self.file.write_text(stale)
        self.assertIn("nvidia0", self.run_podman(GPU).stdout.split())
        self.assertIn("/dev/nvidia9", self.run_podman("0000:af:00.0").stderr)
