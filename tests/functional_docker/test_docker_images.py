# SPDX-License-Identifier: Apache-2.0
"""Images of containers that run, on a real dockerd: whatever is killed meanwhile, the container runs on."""

import io
import os
import signal
import stat
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import fixtures

from containerhost import errors
from containerhost.engines.contract import Status
from containerhost.engines.docker import frozen
from containerhost.engines.docker.client import DockerClient
from containerhost.engines.docker.images import UNFINISHED, Images
from containerhost.linux.sysfs import Host
from tests.functional_docker.base import DockerTestCase
from tests.functional_docker.dockerd import ROOT
from tests.waiting import await_that

# $1 endpoint. The image is not finished before the process is killed.
COMMIT = """
import sys, time
from containerhost.engines.docker.client import DockerClient, Settings
from containerhost.engines.docker.images import Images
commit = DockerClient.commit
def unfinished(*arguments):
    commit(*arguments)
    print("made", flush=True)
    time.sleep(600)
DockerClient.commit = unfinished
Images(DockerClient(Settings(sys.argv[1]))).commit("c1", "kept", "now")
"""


class TestCommit(DockerTestCase):
    def setUp(self):
        super().setUp()
        self.running()
        self.container = self.docker.daemon.api().inspect_container("c1")["Id"]
        self.images = Images(self.engine.client)
        self.addCleanup(self.images.remove, "kept:now")
        self.addCleanup(self.images.remove, f"kept:{UNFINISHED}")

    def is_frozen(self):
        return frozen.is_frozen(Host(), self.container)

    def require_running(self):
        self.assertEqual((Status.RUNNING, False), (self.engine.container("c1").status, self.is_frozen()))

    def begun(self):
        """A process that is to be killed: it has frozen the container, and Docker has made the image."""
        process = subprocess.Popen([sys.executable, "-c", COMMIT, self.docker.daemon.endpoint],
                                   env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE,
                                   start_new_session=True)
        self.addCleanup(process.wait)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.kill)
        self.assertEqual(b"made\n", process.stdout.readline())
        self.assertTrue(self.is_frozen())
        return process

    def holders(self, process):
        """Processes that it started."""
        found = subprocess.run(["pgrep", "--parent", str(process.pid)], capture_output=True, text=True, check=True)
        return [int(pid) for pid in found.stdout.split()]

    def test_nothing_runs_while_the_image_is_made(self):
        seen = []
        commit = DockerClient.commit

        def watched(*arguments):
            seen.append((self.is_frozen(), self.engine.container("c1").status))
            return commit(*arguments)

        self.useFixture(fixtures.MonkeyPatch("containerhost.engines.docker.client.DockerClient.commit", watched))
        image = self.images.commit("c1", "kept", "now")
        self.assertEqual([(True, Status.RUNNING)], seen)
        self.require_running()
        self.assertEqual({"now": image}, self.images.names("kept"))

    def test_suspended_container_stays_suspended(self):
        self.engine.freeze("c1")
        self.images.commit("c1", "kept", "now")
        self.assertEqual((Status.FROZEN, True), (self.engine.container("c1").status, self.is_frozen()))

    def test_container_runs_on_when_the_process_is_killed(self):
        process = self.begun()
        os.killpg(process.pid, signal.SIGKILL)
        await_that(lambda: not self.is_frozen(), "it is thawed")
        self.require_running()
        self.assertEqual([UNFINISHED], list(self.images.names("kept")), "no image of which it is not known to be whole")
        self.images.commit("c1", "kept", "now")
        self.assertEqual(["now"], list(self.images.names("kept")))

    def test_suspension_after_a_killed_process_lasts(self):
        for _ in range(5):
            process = self.begun()
            os.killpg(process.pid, signal.SIGKILL)
            self.engine.freeze("c1")
            await_that(lambda: not self.freezers(), "no process freezes it")
            self.assertEqual((Status.FROZEN, True), (self.engine.container("c1").status, self.is_frozen()))
            self.engine.unfreeze("c1")
            self.require_running()

    def freezers(self):
        return subprocess.run(["pgrep", "--full", f"copyfreeze {self.container}"], capture_output=True,
                              check=False).stdout

    def test_container_that_every_process_left_frozen_is_thawed_by_monitoring(self):
        process = self.begun()
        self.engine.thaw_abandoned()
        self.assertTrue(self.is_frozen(), "it is still copied")
        for pid in (*self.holders(process), process.pid):
            os.kill(pid, signal.SIGSTOP)
        for pid in (*self.holders(process), process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait()
        await_that(lambda: not self.freezers(), "no process freezes it")
        self.assertTrue(self.is_frozen())
        self.engine.thaw_abandoned()
        self.require_running()

    def test_monitoring_leaves_a_suspended_container_alone(self):
        self.engine.freeze("c1")
        self.engine.thaw_abandoned()
        self.assertEqual((Status.FROZEN, True), (self.engine.container("c1").status, self.is_frozen()))

    def test_container_runs_on_when_what_freezes_it_is_killed(self):
        commit = DockerClient.commit

        def killing(*arguments):
            for pid in map(int, self.freezers().split()):
                os.kill(pid, signal.SIGKILL)
            return commit(*arguments)

        self.useFixture(fixtures.MonkeyPatch("containerhost.engines.docker.client.DockerClient.commit", killing))
        error = self.assertRaises(errors.EngineError, self.images.commit, "c1", "kept", "now")
        self.assertIn("while its root was copied", str(error))
        self.require_running()
        self.assertNotIn("now", self.images.names("kept"))

    def test_container_runs_on_when_the_daemon_is_killed(self):
        self.inside("c1", "dd", "if=/dev/urandom", "of=/big", "bs=1M", "count=300")

        def kill():
            await_that(self.is_frozen, "the image is being made", pause=0.01)
            self.docker.daemon.kill()

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            self.assertRaises(errors.EngineUnavailable, self.images.commit, "c1", "kept", "now")
        finally:
            killer.join()
            self.docker.daemon.start()
        self.require_running()
        self.images.commit("c1", "kept", "now")
        self.require_running()


# A file, a directory and one with another's content, which the next container changes.
BEFORE = "mkdir -p /lower/sub /replaced /opt; echo lower > /lower/sub/file; echo old > /replaced/old; echo gone > /gone"
WRITTEN = """
rm /gone; rm -r /replaced; mkdir /replaced; echo new > /replaced/new; echo more >> /lower/sub/file
ln -s /etc/shadow /link; ln -s /etc /replaced/directory; ln /replaced/new /opt/hard; mkfifo -m 600 /fifo
mknod /node c 1 3; chmod 4755 /opt/hard; chown 1000:1000 /opt; touch -d 2001-02-03 /opt/old
printf x > "/opt/$(printf 'caf\\351')"; mkdir -p "/opt/$(printf '%0200d' 1)/$(printf '%0200d' 2)/deep"
dd if=/dev/zero of=/opt/holes bs=1 count=1 seek=1000000
"""


class TestWrittenLayer(DockerTestCase):
    def setUp(self):
        super().setUp()
        self.images = Images(self.engine.client)
        for name in ("base:now", "kept:now"):
            self.addCleanup(self.images.remove, name)
        self.running()
        self.inside("c1", "sh", "-c", BEFORE)
        image = self.images.commit("c1", "base", "now")
        self.running("c2", image=image)
        self.addCleanup(self.engine.delete, "c2")
        self.archive = self.useFixture(fixtures.TempDir()).join("archive")

    def listed(self, image):
        """Return what a container of the image has, without what Docker makes anew in each."""
        api = self.docker.daemon.api()
        container = api.create_container(image, ["true"])
        try:
            with tarfile.open(fileobj=io.BytesIO(b"".join(api.export(container)))) as root:
                return {member.name: (member.type, member.mode, member.uid, member.gid, member.size, member.linkname,
                                      int(member.mtime) if member.isreg() else 0, member.devmajor, member.devminor,
                                      member.isreg() and root.extractfile(member).read())
                        for member in root if member.name.partition("/")[0] not in ("dev", "proc", "sys", ".dockerenv")
                        and member.name not in ("etc/hostname", "etc/hosts", "etc/resolv.conf")}
        finally:
            api.remove_container(container)

    def saved(self):
        """Return the image that Docker made of the container, and that of the archive."""
        divided = self.images.divided("c2")
        self.images.save(divided.image, Path(self.archive))
        self.inside("c2", "sh", "-c", "echo later > /later")
        self.engine.stop("c2", timeout=10, force=True)
        image = self.images.commit("c2", "kept", "now")
        own = self.images.append(image, divided.upper, Path(self.archive))
        self.assertNotEqual(image, own)
        with open(self.archive, "rb") as file:
            self.images.load(file, "archive", own)
        self.addCleanup(self.images.remove, own)
        return image, own

    def test_image_has_what_that_of_docker_has(self):
        self.inside("c2", "sh", "-c", WRITTEN)
        image, own = self.saved()
        expected, found = self.listed(image), self.listed(own)
        self.assertEqual(expected, found)
        self.assertIn("later", found)
        self.assertNotIn("gone", found)
        self.assertNotIn("replaced/old", found)
        self.assertEqual("/etc/shadow", found["link"][5])
        described = [self.engine.client.image(each) for each in (image, own)]
        self.assertEqual(*(each["Config"] for each in described))
        self.assertEqual(*(each["RootFS"]["Layers"][:-1] for each in described))

    def test_names_and_times_that_archives_rarely_have(self):
        self.inside("c2", "sh", "-c", "mkdir /BZh /..x; touch /BZh/f /..x/.. /early /before '/new\nline' '/e=5'")
        root = f"/proc/{self.engine.pid('c2')}/root"
        os.utime(f"{root}/early", ns=(10_000, 10_000))
        os.utime(f"{root}/before", ns=(-1_500_000_000, -1_500_000_000))
        os.mknod(f"{root}/socket", stat.S_IFSOCK | 0o600)
        image, own = self.saved()
        self.assertEqual(self.listed(image), self.listed(own))

    def test_container_that_wrote_nothing(self):
        image, own = self.saved()
        self.assertEqual(self.listed(image), self.listed(own))

    def test_what_was_appended_is_saved_again_with_its_container(self):
        self.inside("c2", "sh", "-c", WRITTEN)
        _, own = self.saved()
        self.engine.delete("c2")
        self.running("c2", image=own)
        self.inside("c2", "sh", "-c", "rm /later; echo again > /again")
        image, again = self.saved()
        self.assertEqual(self.listed(image), self.listed(again))
