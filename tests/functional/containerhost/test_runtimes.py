# SPDX-License-Identifier: Apache-2.0
"""Devices of the emulated host in the real Podman and udocker, and for plain processes."""

import os
import re
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
from importlib.util import find_spec
from pathlib import Path

import fixtures
import testtools

from containerhost.allocation.store import AllocationStore
from containerhost.inventory.scan import scan
from containerhost.linux.process import rungroup
from containerhost.operator.runtimes import cdi
from tests import levels
from tests.waiting import await_that

COMMAND = Path(sys.executable).with_name("containerhost")
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
# Debian's proot 5.1 cannot open directories while it emulates another kernel release, which udocker always requests.
PROOT = """#!/bin/bash
words=()
while [ $# -gt 0 ]; do
    if [ "$1" = -k ]; then shift 2; else words+=("$1"); shift; fi
done
exec proot "${words[@]}"
"""
# As udocker's own, which is quiet at that word.
PATCHELF = """#!/bin/bash
[ "$1" = -q ] && shift
exec /usr/bin/patchelf "$@"
"""
# Replaces Apptainer, which is in no package registry: it prints its arguments.
APPTAINER = """#!/bin/bash
printf 'word:%s\\n' "$@"
env | grep -o '^[A-Z]*ENV_CONTAINERHOST_DEVICES=.*'
"""
LAUNCHER = """#!/usr/bin/python3
import sys
sys.path.insert(0, "{base}/python")
from udocker.maincmd import main
sys.exit(main())
"""
LIBRARIES = Path("/usr/lib") / sysconfig.get_config_var("MULTIARCH")
FAKECHROOT = f"{LIBRARIES}/fakechroot/libfakechroot.so"
USER = "nobody"
# F3 and F4 need udocker's own patchelf and libfakechroot.
MODES = levels.some("modes of udocker", ("P1", "P2", "F1", "F2"), (0, 2))
# Open MPI's headers are not needed where the handles are named as its libraries have them.
RANKS = """
#include <stdio.h>
#include <stdlib.h>
extern char ompi_mpi_comm_world, ompi_mpi_int, ompi_mpi_op_sum;
int MPI_Init(int *, char ***), MPI_Finalize(void), MPI_Comm_rank(void *, int *), MPI_Comm_size(void *, int *);
int MPI_Allreduce(const void *, void *, int, void *, void *, void *);
int main(int argc, char **argv) {
    int rank, size, one, sum;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(&ompi_mpi_comm_world, &rank);
    MPI_Comm_size(&ompi_mpi_comm_world, &size);
    one = rank + 1;
    MPI_Allreduce(&one, &sum, 1, &ompi_mpi_int, &ompi_mpi_op_sum, &ompi_mpi_comm_world);
    printf("rank %d of %d sum %d has %s\\n", rank, size, sum, getenv("CONTAINERHOST_DEVICES"));
    return MPI_Finalize();
}
"""
TOOLS = "1.2.11"  # the release that udocker would fetch; Debian's programs serve instead
# Podman's directories of specifications cannot be configured.
WITH_SPECIFICATIONS = 'mkdir -p /run/cdi && mount --bind "$0" /run/cdi && exec "$@"'


class Podman(fixtures.Fixture):
    """:ivar base: directory of everything
    :ivar environment: makes Podman keep everything below it
    :ivar root: of containers that have busybox
    """

    def _setUp(self) -> None:
        base = Path(self.useFixture(fixtures.TempDir(rootdir="/var/tmp")).path)
        self.base, self.root = base, base / "rootfs"
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
    """Have the real udocker, and a container with the host's own programs, for the user nobody.

    :ivar base: everything is below it
    :ivar program: a name by which that user can start udocker, whatever Python has these tests
    :ivar environment: makes udocker keep everything below a directory of its own, and use Debian's programs
    :cvar NAME: of the container
    """

    NAME = "small"

    def _setUp(self) -> None:
        self.base = Path(self.useFixture(fixtures.TempDir(rootdir="/var/tmp")).path)
        self.base.chmod(0o755)
        self.program = self.base / "udocker"
        package = self.base / "python/udocker"
        shutil.copytree(Path(str(find_spec("udocker").origin)).parent, package)
        for name, content in (("udocker", LAUNCHER.format(base=self.base)), ("proot", PROOT), ("patchelf", PATCHELF),
                              ("apptainer", APPTAINER)):
            (self.base / name).write_text(content)
            (self.base / name).chmod(0o755)
        home = self.base / "home"
        (home / "lib").mkdir(parents=True)
        (home / "lib/VERSION").write_text(TOOLS)
        self.environment = os.environ | {
            "UDOCKER_DIR": str(home), "UDOCKER_USE_PROOT_EXECUTABLE": f"{self.base}/proot",
            "UDOCKER_USE_PATCHELF_EXECUTABLE": f"{self.base}/patchelf", "UDOCKER_FAKECHROOT_SO": FAKECHROOT,
            "UDOCKER_USE_SINGULARITY_EXECUTABLE": f"{self.base}/apptainer"}
        make_root(self.base / "root")
        with tarfile.open(self.base / "image.tar", "w") as archive:
            archive.add(self.base / "root", ".")
        for path in (home, *home.rglob("*")):
            shutil.chown(path, USER, "nogroup")
        self.call("import", self.base / "image.tar", "small:1")
        self.call("create", f"--name={self.NAME}", "small:1")

    def call(self, *words: str | Path) -> None:
        subprocess.run(("setpriv", f"--reuid={USER}", "--regid=nogroup", "--clear-groups", self.program, *words),
                       env=self.environment, check=True, capture_output=True, timeout=TIMEOUT)


def make_root(root: Path) -> None:
    """Make the root of a container with a shell, an MPI program, and the host's libraries for both."""
    for directory in ("bin", "dev", "proc", "sys", "etc", "tmp", "var/tmp", "usr/share"):
        (root / directory).mkdir(parents=True)
    for name, content in (("passwd", "root:x:0:0:root:/:/bin/sh\n"), ("group", "root:x:0:\n")):
        (root / "etc" / name).write_text(content)
    for name in ("sh", "cat", "sleep"):
        shutil.copy(Path("/bin") / name, root / "bin" / name)
    source = root / "ranks.c"
    source.write_text(RANKS)
    subprocess.run(("gcc", "-o", root / "bin/ranks", source, "-l:libmpi.so.40"), check=True, timeout=TIMEOUT)
    for name in ("openmpi", "pmix2"):
        shutil.copytree(LIBRARIES / name, root / str(LIBRARIES)[1:] / name)
    for name in ("/usr/share/openmpi", "/etc/openmpi"):
        shutil.copytree(name, root / name[1:])
    files = [*(root / "bin").iterdir(), *root.rglob("*.so*")]
    said = subprocess.run(("ldd", *files), check=False, capture_output=True, text=True, timeout=TIMEOUT).stdout
    for name in sorted(set(re.findall(r"(/\S+) \(0x", said))):
        target = root / name[1:].removeprefix("usr/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(name, target)


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


class RunCase(testtools.TestCase):
    """:ivar owners: records of this test's own"""

    environment: dict[str, str]

    def setUp(self) -> None:
        super().setUp()
        self.owners = Path(self.useFixture(fixtures.TempDir()).path)
        self.store = AllocationStore(self.owners)

    def started(self, *words: str | Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [COMMAND, "run", "--owners", self.owners, *words], env=self.environment, cwd="/",
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def line(self, process: subprocess.Popen[str]) -> str:
        """Return the next line that a run prints, which nobody waits for without end."""
        self.assertTrue(select.select([process.stdout], [], [], TIMEOUT)[0], "it prints nothing")
        return process.stdout.readline()

    def run_words(self, *words: str | Path) -> tuple[int, str]:
        process = self.started(*words)
        out, err = process.communicate(timeout=TIMEOUT)
        return process.returncode, out + err

    def is_free(self) -> bool:
        """Return whether a run can have all GPUs, after it has freed those of runs that are gone."""
        status, said = self.run_words("--gpu", "2", "--", "true")
        self.assertTrue(status == 0 or "0 GPUs" in said, said)
        return status == 0


class RunTest(RunCase):
    def setUp(self) -> None:
        super().setUp()
        self.podman = self.useFixture(Podman())
        self.environment = self.podman.environment

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
        self.assertEqual("up\n", self.line(process))
        process.kill()
        process.wait()
        self.assertEqual(2, len(self.store.records()))
        await_that(self.is_free, "the container ends, and its GPUs can be had", TIMEOUT)
        self.assertEqual({}, self.store.records())

    def test_containers_are_ranks_of_an_mpi_program(self) -> None:
        make_root(root := self.podman.base / "ranks")
        status, said = self.run_words("--mpi", "2", "--gpu", "1", "--", "podman", "run", "--rm", "--rootfs", root,
                                      "/bin/ranks")
        self.assertEqual(0, status, said)
        self.assertLessEqual({f"rank 0 of 2 sum 3 has {GPU}", "rank 1 of 2 sum 3 has 0000:af:00.0"},
                             set(said.replace("\r", "").splitlines()))
        self.assertEqual({}, self.store.records())

    def test_ranks_that_find_too_few_devices_change_nothing(self) -> None:
        status, said = self.run_words("--mpi", "3", "--gpu", "1", "--", "true")
        self.assertEqual(1, status)
        self.assertIn("this host has 0 GPUs", said)
        self.assertEqual({}, self.store.records())

    def test_second_sigterm_ends_what_ignores_the_first(self) -> None:
        process = self.started("--gpu", "1", "--", "sh", "-c",
                               "trap 'echo ignored' TERM; echo up; while :; do sleep 0.1; done")
        self.assertEqual("up\n", self.line(process))
        process.terminate()
        self.assertEqual("ignored\n", self.line(process))
        self.assertIsNone(process.poll())
        process.terminate()
        self.assertEqual("ignored\n", self.line(process))
        process.terminate()  # while it ends what ignores SIGTERM
        process.communicate(timeout=TIMEOUT)
        self.assertEqual(128 + signal.SIGTERM, process.returncode)
        self.assertEqual({}, self.store.records())

    @testtools.skipIf(len(os.sched_getaffinity(0)) < 2, "two ranks need two cores")
    def test_ranks_have_cores_of_their_own(self) -> None:
        status, said = self.run_words("--mpi", "2", "--gpu", "1", "--cores", "1", "--", "sh", "-c",
                                      "echo $CONTAINERHOST_DEVICES $(grep Cpus_allowed_list /proc/self/status)")
        self.assertEqual(0, status, said)
        found = dict(re.findall(r"(\S+) Cpus_allowed_list: (\d+)\n", said))
        self.assertEqual({GPU, "0000:af:00.0"}, set(found), said)
        self.assertEqual(2, len(set(found.values())), said)

    def test_of_two_programs_for_the_same_devices_one_gets_all(self) -> None:
        end = Path(self.useFixture(fixtures.TempDir()).path) / "end"
        script = f"echo $CONTAINERHOST_DEVICES; while ! [ -e {end} ]; do sleep 0.1; done"
        programs = [self.started("--mpi", "2", "--gpu", "1", "--", "sh", "-c", script) for _ in range(2)]
        await_that(lambda: any(program.poll() is not None for program in programs), "one is refused", TIMEOUT)
        refused, other = sorted(programs, key=lambda program: program.returncode is None)
        out, err = refused.communicate(timeout=TIMEOUT)
        self.assertEqual((1, ""), (refused.returncode, out), err)
        self.assertRegex(err, "Error: .*(this host has [01] GPUs|allocated)")
        end.touch()
        out, err = other.communicate(timeout=TIMEOUT)
        self.assertEqual(0, other.returncode, err)
        self.assertEqual({GPU, "0000:af:00.0"}, set(out.split()))
        self.assertEqual({}, self.store.records())

    def test_killed_run_ends_its_ranks(self) -> None:
        process = self.started("--mpi", "2", "--gpu", "1", "--user", USER, "--", "sh", "-c",
                               "echo $(id -un) up; exec sleep 600")
        self.assertEqual([f"{USER} up\n"] * 2, [process.stdout.readline() for _ in range(2)])
        process.kill()
        process.wait()
        self.assertEqual(2, len(self.store.records()))
        await_that(self.is_free, "the ranks end, and their GPUs can be had", TIMEOUT)
        self.assertEqual({}, self.store.records())

    def test_record_shows_what_a_process_has(self) -> None:
        status, said = self.run_words("--gpu", "1", "--vf", "1", "--", "sh", "-c", f"""
            echo $CONTAINERHOST_DEVICES $CONTAINERHOST_NETDEVS
            {COMMAND} list --short --owners {self.owners}""")
        self.assertEqual(0, status, said)
        self.assertIn(f"{GPU},{FUNCTION} ibs1v0", said)
        self.assertRegex(said, rf"{GPU} .* ATTACHED +process/[0-9-]+ \(run ")
        self.assertEqual(2, said.count("ATTACHED"), said)
        self.assertEqual({}, self.store.records())


class UdockerTest(RunCase):
    """Containers of a user without rights, in the modes that Debian's programs serve."""

    def setUp(self) -> None:
        super().setUp()
        self.udocker = self.useFixture(Udocker())
        self.environment = self.udocker.environment

    def in_udocker(self, *words: str) -> tuple[str | Path, ...]:
        return ("--user", USER, "--", self.udocker.program, "run", "--nobanner", *words)

    def test_containers_have_the_devices_of_the_run_in_each_mode(self) -> None:
        # The kernel opens the emulated nodes as far as the driver, which this machine does not have.
        script = """
            for node in /dev/nvidia0 /dev/nvidia1 /dev/infiniband/uverbs1 /dev/infiniband/uverbs2; do
                case $(cat $node 2>&1) in *"No such device or address") echo has:$node; esac
            done
            echo has:$CONTAINERHOST_DEVICES; exit 5"""
        own = {"has:/dev/nvidia0", "has:/dev/infiniband/uverbs1", f"has:{GPU},{FUNCTION}"}
        others = {"has:/dev/nvidia1", "has:/dev/infiniband/uverbs2"}
        for mode in MODES:
            self.udocker.call("setup", f"--execmode={mode}", Udocker.NAME)
            for options, more in (((), others), (("--nosysdirs",), set())):
                status, said = self.run_words("--gpu", "1", "--vf", "1", *self.in_udocker(
                    *options, Udocker.NAME, "sh", "-c", script))
                found = {word for word in said.split() if word.startswith("has:")}
                self.assertEqual((5, own | more), (status, found), f"{mode} {options}: {said}")
        self.assertEqual({}, self.store.records())

    def test_ranks_have_devices_of_their_own_in_each_mode(self) -> None:
        for mode in MODES:
            self.udocker.call("setup", f"--execmode={mode}", Udocker.NAME)
            status, said = self.run_words("--mpi", "2", "--gpu", "1", "--vf", "1", *self.in_udocker(
                "--hostauth", f"--user={USER}", "--workdir=/", Udocker.NAME, "/bin/ranks"))
            self.assertEqual(0, status, f"{mode}: {said}")
            self.assertIn(f"rank 0 of 2 sum 3 has {GPU},{FUNCTION}", said)
            self.assertIn("rank 1 of 2 sum 3 has 0000:af:00.0,0000:d8:00.1", said)
        self.assertEqual({}, self.store.records())

    def test_apptainer_is_called_with_the_devices(self) -> None:
        # A stub, which udocker starts in its mode S1, or the run by itself.
        self.udocker.call("setup", "--execmode=S1", Udocker.NAME)
        for command, begin, devices, option in (
                (self.in_udocker(Udocker.NAME, "sh"), {"word:exec", "word:-w"}, "SINGULARITYENV_CONTAINERHOST_DEVICES",
                 "word:{0}:{0}"),
                (("--user", USER, "--", self.udocker.base / "apptainer", "exec", "image.sif", "sh"),
                 {"word:exec", "word:--nv", "word:image.sif"}, "APPTAINERENV_CONTAINERHOST_DEVICES",
                 "word:--bind={0}")):
            status, said = self.run_words("--gpu", "1", "--vf", "1", *command)
            self.assertEqual(0, status, said)
            nodes = {option.format(node) for node in ("/dev/nvidia0", "/dev/nvidiactl", "/dev/infiniband/uverbs1")}
            self.assertLessEqual({*begin, *nodes, f"{devices}={GPU},{FUNCTION}"}, set(said.splitlines()))
            self.assertNotIn(option.format("/dev/nvidia1"), said)

    def test_container_that_outlives_a_killed_run_keeps_its_devices(self) -> None:
        process = self.started("--gpu", "2", *self.in_udocker(Udocker.NAME, "sh", "-c", "echo up; exec sleep 600"))
        self.assertEqual("up\n", self.line(process))
        names = {record.consumer.uuid for record in self.store.records().values()}
        process.kill()
        process.wait()
        self.assertEqual(1, len(names))
        self.assertFalse(self.is_free())
        for pid in rungroup.members(names.pop()):
            os.kill(pid, signal.SIGKILL)
        await_that(self.is_free, "the container's GPUs can be had", TIMEOUT)
        self.assertEqual({}, self.store.records())
