# SPDX-License-Identifier: Apache-2.0
"""Devices of the emulated host in the real Podman and udocker, and for plain processes."""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import fixtures
import testtools

from containerhost.allocation.store import AllocationStore
from containerhost.inventory.scan import scan
from containerhost.operator.runtimes import cdi
from tests.waiting import await_that

COMMAND, UDOCKER = (Path(sys.executable).with_name(name) for name in ("containerhost", "udocker"))
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
# Debian's proot 5.1 opens no directory while it emulates another kernel's release, which udocker always asks for.
PROOT = """#!/bin/bash
words=()
while [ $# -gt 0 ]; do
    if [ "$1" = -k ]; then shift 2; else words+=("$1"); shift; fi
done
exec proot "${words[@]}"
"""
TOOLS = "1.2.11"  # the release that udocker would fetch; Debian's programs serve instead
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


class Udocker(fixtures.Fixture):
    """:ivar environment: makes udocker keep everything below a directory of its own
    :cvar NAME: of the container that it has, with busybox
    """

    NAME = "small"

    def __init__(self, root: Path) -> None:
        self._root = root

    def _setUp(self) -> None:
        base = Path(self.useFixture(fixtures.TempDir()).path)
        (base / "proot").write_text(PROOT)
        (base / "proot").chmod(0o755)
        (base / "home/lib").mkdir(parents=True)
        (base / "home/lib/VERSION").write_text(TOOLS)
        self.environment = os.environ | {"UDOCKER_DIR": f"{base}/home", "UDOCKER_DEFAULT_EXECUTION_MODE": "P1",
                                         "UDOCKER_USE_PROOT_EXECUTABLE": f"{base}/proot"}
        for name, content in (("passwd", "root:x:0:0:root:/:/bin/sh\n"), ("group", "root:x:0:\n")):
            (self._root / "etc" / name).write_text(content)
        with tarfile.open(base / "image.tar", "w") as archive:
            archive.add(self._root, ".")
        for words in (("import", base / "image.tar", "busybox:1"), ("create", f"--name={self.NAME}", "busybox:1")):
            subprocess.run((UDOCKER, "--allow-root", *words), env=self.environment, check=True, capture_output=True,
                           timeout=TIMEOUT)


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


class RunTest(testtools.TestCase):
    """:ivar owners: records of this test's own"""

    def setUp(self) -> None:
        super().setUp()
        self.podman = self.useFixture(Podman())
        self.environment = self.podman.environment
        self.owners = Path(self.useFixture(fixtures.TempDir()).path)
        self.store = AllocationStore(self.owners)

    def started(self, *words: str | Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [COMMAND, "run", "--owners", self.owners, *words], env=self.environment,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def run_words(self, *words: str | Path) -> tuple[int, str]:
        process = self.started(*words)
        out, err = process.communicate(timeout=TIMEOUT)
        return process.returncode, out + err

    def in_podman(self, script: str) -> tuple[str | Path, ...]:
        return ("--", "podman", "run", "--rm", "--rootfs", self.podman.root, "sh", "-c", script)

    def test_container_has_its_devices_and_frees_them(self) -> None:
        status, said = self.run_words("--gpu", "1", *self.in_podman("ls /dev; echo $CONTAINERHOST_DEVICES; exit 5"))
        self.assertEqual(5, status, said)
        self.assertLessEqual({"nvidia0", "nvidiactl", GPU}, set(said.split()))
        self.assertNotIn("nvidia1", said.split())
        self.assertEqual({}, self.store.records())

    def test_killed_run_ends_its_container_and_the_next_has_the_devices(self) -> None:
        process = self.started("--gpu", "2", *self.in_podman(
            "trap 'exit 0' TERM; echo up; while :; do sleep 0.1; done"))
        self.assertEqual("up\n", process.stdout.readline())
        process.kill()
        process.wait()
        self.assertEqual(2, len(self.store.records()))
        await_that(self.is_free, "the container ends, and its GPUs can be had", TIMEOUT)
        self.assertEqual({}, self.store.records())

    def is_free(self) -> bool:
        status, said = self.run_words("--gpu", "2", "--", "true")
        self.assertTrue(status == 0 or "0 GPUs" in said, said)
        return status == 0

    def test_record_shows_what_a_process_has(self) -> None:
        status, said = self.run_words("--gpu", "1", "--vf", "1", "--", "sh", "-c", f"""
            echo $CONTAINERHOST_DEVICES $CONTAINERHOST_NETDEVS
            {COMMAND} list --short --owners {self.owners}""")
        self.assertEqual(0, status, said)
        self.assertIn(f"{GPU},{FUNCTION} ibs1v0", said)
        self.assertRegex(said, rf"{GPU} .* ATTACHED +process/[0-9-]+ \(run ")
        self.assertEqual(2, said.count("ATTACHED"), said)
        self.assertEqual({}, self.store.records())

    def test_unknown_device_changes_nothing(self) -> None:
        status, said = self.run_words("--device", "0000:99:00.0", "--", "true")
        self.assertEqual(1, status)
        self.assertIn("Error: this host has no device 0000:99:00.0", said)
        self.assertEqual({}, self.store.records())

    def test_udocker_has_the_devices_of_the_run(self) -> None:
        udocker = self.useFixture(Udocker(self.podman.root))
        self.environment = udocker.environment
        run = ("--gpu", "1", "--vf", "1", "--", UDOCKER, "--allow-root", "run", "--nobanner")
        show = (udocker.NAME, "sh", "-c", "ls /dev /dev/infiniband; echo $CONTAINERHOST_DEVICES; exit 5")
        status, said = self.run_words(*run, "--nosysdirs", *show)
        self.assertEqual(5, status, said)
        self.assertLessEqual({"nvidia0", "nvidiactl", "uverbs1", f"{GPU},{FUNCTION}"}, set(said.split()))
        self.assertEqual(set(), {"nvidia1", "uverbs2", "kmsg"} & set(said.split()))
        status, said = self.run_words(*run, *show)  # its own way: the host's /dev
        self.assertEqual(5, status, said)
        self.assertLessEqual({"nvidia1", f"{GPU},{FUNCTION}"}, set(said.split()))
        self.assertEqual({}, self.store.records())
