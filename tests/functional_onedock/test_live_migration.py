# SPDX-License-Identifier: Apache-2.0
"""A VM that runs moves from one engine to another by a restart; both nodes see one datastore."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator

from containerhost.engines.contract import Status
from containerhost.engines.docker import writtenlayer
from containerhost.engines.docker.images import Images
from onedock import imageref
from onedock.imageref import ImageRef
from tests.commands import script
from tests.functional.lxd import memlock
from tests.functional_docker.dockerd import Daemon
from tests.functional_one.test_disks import volatile
from tests.functional_one.vms import Machine
from tests.functional_onedock.base import CLEANUP, RESUME, SHUTDOWN, UNDEPLOY, own
from tests.functional_onedock.test_life import SAVED
from tests.functional_onedock.transfercase import TransferCase
from tests.waiting import await_that

MIGRATE = 4  # LCM state
RESTARTS = own(DOCKER_LIVE_MIGRATION="restart")
SECRET = "of the host alone"
# A tenant who changes the tree while root reads it.
ATTACK = """mkdir -p /d /a/b; mkfifo /d/fifo; mknod /d/null c 1 3; ln -s VICTIM /link; echo x > /d/file
(while :; do rm -rf /a; ln -s VICTIM /a; rm /a; mkdir -p /a/b; echo y > /a/b/secret; done) > /dev/null 2>&1 &
(while :; do rm -f /d/file; mkfifo /d/file; rm /d/file; ln -s VICTIM/secret /d/file; rm /d/file; echo z > /d/file; done
) > /dev/null 2>&1 &
(while :; do head -c 100000 /dev/zero >> /d/grows; [ $(wc -c < /d/grows) -gt 50000000 ] && : > /d/grows; done
) > /dev/null 2>&1 &"""


class LiveMigrationTest(TransferCase):
    inline = False

    def setUp(self) -> None:
        super().setUp()
        self.node.forks = False  # whose processes have this host's name
        self.other = Daemon()
        self.addCleanup(self.other.remove)
        self.other.start()
        self.there = self.other.engine()
        self.conf, self.state = self.node.base / "other.toml", self.node.base / "other-state"
        self.configure()
        commands = self.node._commands
        script(commands / "sudo", 'shift; exec "$@"')
        inner = f'hostname node2; export ONEDOCK_CONF={self.conf}; exec sh -c "$0"'
        script(commands / "ssh", "while [ \"$1\" != -- ]; do shift; done\n[ \"$2\" = node2 ] || exec sh -c \"$3\"\n"
                                 f"echo $$ > {self.node.base}/receiver; exec unshare --uts sh -c '{inner}' \"$3\"")

    def configure(self, more: str = "") -> None:
        self.conf.write_text(
            f'endpoint = "{self.other.endpoint}"\nrecords = "{self.other.records}"\nstate = "{self.state}"\n'
            f'owners = "{self.node.base}/other-owners"\ndatastores = "{self.node.datastores}"\n'
            f'memlock = "{memlock()}"\nstop_timeout = 3\n{more}')

    @contextlib.contextmanager
    def on_node2(self) -> Iterator[None]:
        before, self.node._conf = self.node._conf, self.conf
        try:
            yield
        finally:
            self.node._conf = before

    def booted(self, machine: Machine) -> Machine:
        if "<DISK_ID>1<" in machine.disks:
            self.node.give_file_system(machine, 1, 16)
        self.run_vm(self.registered(self.fresh()), machine)
        self.addCleanup(self.ended, machine)
        return machine

    def ended(self, machine: Machine) -> None:
        with self.on_node2():
            self.ok("cancel", machine, lcm=CLEANUP)
        self.ok("cancel", machine, lcm=CLEANUP)
        self.assertEqual([], self.other.api().images(name="onedock/*"))
        self.assertEqual([], list(self.state.glob("one-*")))

    def read(self, words: str) -> str:
        """Run a shell's command in the container on the other node."""
        api = self.other.api()
        process = api.exec_create("one-1", ["sh", "-c", words])
        return str(api.exec_start(process).decode())

    def migrated(self, machine: Machine) -> None:
        self.ok("migrate", machine, "node2", "node1", lcm=MIGRATE)
        self.assertEqual((), self.engine.containers())
        self.assertEqual((set(), []), (self.held(), list(self.node.state.glob("one-*"))))
        self.assertEqual(Status.RUNNING, self.there.container(machine.name).status)

    def assert_stays(self, machine: Machine, pid: int | None = None) -> None:
        """It runs on its source, which alone has something of it."""
        self.assertEqual(Status.RUNNING, self.status(machine))
        if pid is not None:
            self.assertEqual(pid, self.pid(machine))
        self.assertEqual(((), []), (self.there.containers(), self.other.api().images(all=True)))
        self.assertEqual([], list(self.state.glob("one-*")))
        names = {path.name for path in self.node.directory(machine).iterdir()}
        self.assertEqual(set(), names - {"disk.0", "disk.1"})
        self.assertFalse((self.node.state / machine.name / "moving").exists())

    def test_with_all_it_wrote(self) -> None:
        machine = self.booted(Machine(disks=Machine().disks + volatile(16), more=RESTARTS))
        self.shell(machine, "rm /fresh; mkdir -p /srv/a; echo old > /srv/a/old; echo disk > /media/1/file; cd /srv; "
                            "ln -s a b; ln a/old hard; chown 7:8 a; chmod 751 a; rm /bin/yes; "
                            "(while :; do cat /proc/uptime >> /srv/notes; sleep 0.05; done) > /dev/null 2>&1 &")
        await_that(lambda: self.shell(machine, "wc -l < /srv/notes").strip() > "20", "it writes")
        seen = self.shell(machine, "cat /srv/notes")
        self.migrated(machine)
        notes = self.read("cat /srv/notes").splitlines()
        self.assertEqual(seen.splitlines(), notes[:len(seen.splitlines())])
        self.assertEqual("old\nold\ndisk\n", self.read("cat /srv/b/old /srv/hard /media/1/file"))
        self.assertEqual("751 7 8 2\n", self.read("stat -c '%a %u %g' /srv/a | tr '\\n' ' '; stat -c %h /srv/hard"))
        self.assertEqual("none\n", self.read("ls /fresh /bin/yes 2> /dev/null || echo none"))
        with self.on_node2():  # it leaves as any other
            self.ok("shutdown", machine, lcm=UNDEPLOY)
        self.assertEqual(((), []), (self.there.containers(), self.other.api().images(name="onedock/*")))
        self.assertIsNone(imageref.read(self.file(machine, "disk.0")).node)
        self.ok("deploy", machine, lcm=32)
        self.assertEqual("\n".join(notes), self.shell(machine, "cat /srv/notes").strip())

    def test_what_its_tenant_changes_meanwhile_leads_nowhere(self) -> None:
        machine = self.booted(Machine(more=RESTARTS))
        victim = self.node.base / "victim"
        victim.mkdir()
        (victim / "secret").write_text(SECRET)
        self.shell(machine, ATTACK.replace("VICTIM", str(victim)))
        time.sleep(1)
        began = time.monotonic()
        self.migrated(machine)
        self.assertLess(time.monotonic() - began, 90)
        self.assertNotIn(SECRET.encode(), self.file(machine, "disk.0.tar").read_bytes())
        self.assertIn("fifo", self.read("ls /d"))

    def test_refused_with_the_remedy_while_it_runs_on(self) -> None:
        machine = self.booted(Machine())
        pid = self.pid(machine)
        self.refused("use onevm migrate without --live, or DOCKER_LIVE_MIGRATION = restart", "migrate", machine,
                     "node2", "node1", lcm=MIGRATE)
        self.did(self.front.tm("premigrate", "node1", "node2", str(self.front.directory() / "1")))
        machine = machine.changed(more=RESTARTS)
        (self.node.base / "elsewhere/0/1").mkdir(parents=True)
        for more in ('docker = "no option"', f'datastores = "{self.node.base}/elsewhere"'):
            self.conf.write_text("\n".join(line for line in self.conf.read_text().splitlines()
                                           if not line.startswith("datastores")) + f"\n{more}\n")
            self.refused("node2", "migrate", machine, "node2", "node1", lcm=MIGRATE)
            self.configure()
        self.assert_stays(machine, pid)

    def test_image_of_too_many_layers_becomes_one_when_it_leaves(self) -> None:
        images, archive, upper = Images(self.node.docker.daemon.client()), self.node.base / "deep", self.node.base / "u"
        images.save(self.node.image("polite"), archive)
        upper.mkdir()
        for number in range(118):
            (upper / "count").write_text(str(number))
            image = writtenlayer.append(archive, upper).image
        with archive.open("rb") as file:
            images.load(file, "deep", image)
        self.addCleanup(images.remove, image)
        machine = Machine(more=RESTARTS)
        imageref.write(self.file(machine, "disk.0"), ImageRef(image, "docker://deep"))
        self.addCleanup(lambda: self.did(self.front.tm("delete", self.front.place(""))))
        self.addCleanup(self.ended, machine)
        self.ok("deploy", machine, lcm=2)
        self.shell(machine, "echo kept > /file; rm /bin/yes; touch /BZh")
        self.refused("use onevm migrate --poff", "migrate", machine, "node2", "node1", lcm=MIGRATE)
        self.assert_stays(machine)
        self.ok("shutdown", machine, lcm=UNDEPLOY)
        self.ok("deploy", machine, lcm=32)
        self.assertEqual("117kept\nnone\n",
                         self.shell(machine, "cat /count /file; ls /bin/yes 2> /dev/null || echo none"))
        self.assertEqual(1, len(images.layers_of(machine.name)))
        self.migrated(machine)
        self.assertEqual("117kept\n", self.read("cat /count /file"))

    def test_back_where_it_cannot_start(self) -> None:
        machine = self.booted(Machine(more=RESTARTS))
        self.shell(machine, "echo kept > /file")
        self.configure(f'lxcfs = "{self.node.base}/none"\n')
        self.refused("node2", "migrate", machine, "node2", "node1", lcm=MIGRATE)
        self.assertEqual((Status.RUNNING, "kept\n"), (self.status(machine), self.shell(machine, "cat /file")))
        self.assertEqual(((), []), (self.there.containers(), self.other.api().images(all=True)))

    def test_source_that_opennebula_asks_for_its_data(self) -> None:
        """oned did not get the answer."""
        source = self.registered(self.fresh())
        machine = Machine(disks=SAVED + volatile(16), more=RESTARTS)
        self.node.give_file_system(machine, 1, 16)
        self.run_vm(source, machine, "ln")
        self.addCleanup(self.ended, machine)
        self.shell(machine, "echo kept > /file")
        self.migrated(machine)
        before, place = self.front.record(source), self.front.place()
        for action, arguments in (("mvds", (place, source)), ("cpds", (place, source, "raw", "-1")),
                                  ("resize", (self.front.place("disk.1"), 32))):
            self.failed("the VM is on node node2", self.front.tm(action, *arguments))
        self.refused("the VM is on node node2", "cancel", machine, lcm=SHUTDOWN)
        self.assertEqual((before, "kept\n"), (self.front.record(source), self.read("cat /file")))
        command = f"onedock leave {machine.id} 0"
        with self.on_node2():
            self.assertIn("only a stopped one can leave", self.node.command(command).err)
            self.other.api().stop(machine.name)  # docker stop
            self.did(self.node.command(command))
        self.did(self.front.tm("mvds", place, source))
        self.did(self.front.tm("delete", self.front.place("")))
        other = self.run_vm(source, Machine(2))
        self.assertEqual("kept\n", self.inside(other, "cat", "/file"))
        self.ok("cancel", other, lcm=CLEANUP)

    def test_source_killed_at_any_time(self) -> None:
        machine = self.booted(Machine(more=RESTARTS))
        self.shell(machine, "echo kept > /file; trap '' TERM")
        for seconds in (1.0, 3.0, 5.0):
            with self.node.begun("migrate", machine, "node2", "node1", lcm=MIGRATE) as process:
                time.sleep(seconds)
                os.killpg(process.pid, signal.SIGKILL)
            self.assertEqual(0, self.node.command("onedock reconcile").status)
            if self.engine.exists(machine.name):
                self.ok("deploy", machine, lcm=RESUME)
                self.assertEqual("kept\n", self.shell(machine, "cat /file"))
            else:
                await_that(lambda: self.read("cat /file") == "kept\n", "it runs on the other node")
                return
            await_that(lambda: self.there.containers() == () and not list(self.state.glob("one-*")), "nothing is there")
            self.assertEqual([], self.other.api().images(all=True))

    def test_destination_killed_at_any_time(self) -> None:
        machine, receiver = self.booted(Machine(more=RESTARTS)), self.node.base / "receiver"
        self.shell(machine, "echo kept > /file")
        for seconds in (0.5, 2.0, 3.5, 5.0, 6.5):
            receiver.unlink(missing_ok=True)
            with self.node.begun("migrate", machine, "node2", "node1", lcm=MIGRATE) as process:
                await_that(lambda: receiver.exists() and receiver.read_text(), "it is asked")
                time.sleep(seconds)
                if process.poll() is None:
                    os.kill(int(receiver.read_text()), signal.SIGKILL)
                process.wait(60)
            with self.on_node2():
                self.assertEqual(0, self.node.command("onedock reconcile").status)
            if imageref.read(self.file(machine, "disk.0")).node == "node2":
                self.assertEqual((), self.engine.containers())
                if self.there.containers() == ():
                    with self.on_node2():
                        self.ok("deploy", machine, lcm=RESUME)
                await_that(lambda: self.read("cat /file") == "kept\n", "it runs on the other node")
                return
            self.assertEqual("kept\n", self.shell(machine, "cat /file"))
            self.assert_stays(machine)
