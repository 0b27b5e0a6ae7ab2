# SPDX-License-Identifier: Apache-2.0
"""From a datastore to a VM and back, by the installed scripts, on a real dockerd."""

import hashlib
import io
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from containerhost.linux.lock import FileLock
from onedock import imageref
from onedock.datastore.store import Store
from onedock.nodeimages import NodeImages
from tests import levels
from tests.functional_one.node import Result
from tests.functional_one.vms import ROOT, Machine
from tests.functional_onedock.base import (
    BOOT,
    BOOT_UNDEPLOYED,
    CLEANUP,
    POWEROFF,
    RESTORE,
    RESUME,
    SHUTDOWN,
    SUSPEND,
    UNDEPLOY,
    OnedockCase,
)
from tests.functional_onedock.frontend import FrontEnd
from tests.functional_onedock.registry import HOST, USER, WORD, Registry
from tests.functional_onedock.test_life import SAVED
from tests.functional_onedock.test_parts import disk, may_grow
from tests.unit.onedock.images import tarball
from tests.waiting import await_that

LOCK_TIMEOUT = 5  # s
DATA = ("<DISK><DISK_ID>1</DISK_ID><TYPE>FILE</TYPE><FORMAT>raw</FORMAT><READONLY>NO</READONLY><SAVE>YES</SAVE>"
        "<SIZE>8</SIZE><TARGET>sdb</TARGET></DISK><DISK><DISK_ID>2</DISK_ID><TYPE>fs</TYPE><FORMAT>raw</FORMAT>"
        "<SIZE>8</SIZE><TARGET>sdc</TARGET></DISK>")


class TransferCase(OnedockCase):
    def setUp(self) -> None:
        super().setUp()
        self.front = self.useFixture(FrontEnd(self.node))

    def nothing_is_left(self) -> None:
        super().nothing_is_left()
        self.assertEqual([], self.front.left())

    def did(self, result: Result) -> str:
        self.assertEqual((0, ""), (result.status, result.reason), result.err)
        return result.out.strip()

    def failed(self, words: str, result: Result) -> None:
        self.assertNotEqual(0, result.status, result.out)
        self.assertIn(words, result.reason)
        self.assertTrue(result.reason.endswith("."), result.reason)
        self.assertNotIn("Traceback", result.err)

    def made(self) -> str:
        """An image like no other, for which the engine has no name."""
        api = self.node.docker.daemon.api()
        container = api.create_container("polite", ["/bin/true"])["Id"]
        api.put_archive(container, "/", tarball({"fresh": os.urandom(8).hex().encode()}))
        image = api.commit(container, conf={"Cmd": api.inspect_image("polite")["Config"]["Cmd"]})["Id"]
        api.remove_container(container)
        return str(image)

    def fresh(self) -> Path:
        """An archive of an image that the engine does not have any more."""
        api, image = self.node.docker.daemon.api(), self.made()
        path = self.front.files / "fresh.tar"
        with path.open("wb") as file:
            for piece in api.get_image(image):
                file.write(piece)
        api.remove_image(image)
        return path

    def registered(self, path: Path | str, **attributes: str) -> str:
        source, format = self.did(self.front.ds("cp", {"PATH": str(path)}, **attributes)).split()
        self.assertEqual("raw", format)
        self.addCleanup(lambda: self.did(self.front.ds("rm", {"SOURCE": source})))
        return source

    def cloned(self, source: str, machine: Machine, how: str = "clone") -> None:
        """The first disk, until the VM is gone."""
        self.addCleanup(lambda: self.did(self.front.tm("delete", self.front.place("", vm=machine.id), vm=machine.id)))
        self.did(self.front.tm(how, f"front-end:{source}", self.front.place(vm=machine.id), vm=machine.id))

    def run_vm(self, source: str, machine: Machine | None = None, how: str = "clone") -> Machine:
        machine = machine or Machine()
        self.cloned(source, machine, how)
        self.ok("deploy", machine, lcm=BOOT)
        return machine

    def held(self) -> set[str]:
        return {name for name in self.image_names() if name.startswith("onedock/")}


@levels.exhaustive("TwoNodesTest moves one; a persistent image of a VM that runs stays", tests=(
    "test_a_persistent_image_becomes_what_its_vm_made_of_it_also_when_it_ends_while_it_is_off",
    "test_a_vm_moves_to_another_host_with_what_it_wrote", "test_nothing_moves_ends_or_changes_while_docker_is_down"))
class ImagesTest(TransferCase):
    def test_an_archive_becomes_a_running_vm(self) -> None:
        source = self.registered(self.fresh())
        record = self.front.record(source)
        machine = self.run_vm(source)
        self.assertEqual(record.image, self.inspect(machine)["Image"])
        self.assertEqual(16, len(self.inside(machine, "cat", "/fresh")))
        found = imageref.read(self.file(machine, "disk.0"))
        self.assertEqual((record.image, record.reference, None), (found.image, found.reference, found.archive))
        self.ok("cancel", machine, lcm=CLEANUP)

    def test_vms_of_one_image_share_it_and_the_last_takes_it_along(self) -> None:
        source = self.registered(self.fresh())
        image = self.front.record(source).image
        self.cloned(source, Machine(1))
        # What is there is not sent again: the layers are away meanwhile.
        store = Store(self.front.datastore)
        directory = store.directory(self.front.record(source))
        directory.rename(directory.with_name("away"))
        self.cloned(source, Machine(2))
        directory.with_name("away").rename(directory)
        self.assertEqual({"onedock/one-1:disk.0", "onedock/one-2:disk.0"}, self.held())
        self.did(self.front.tm("delete", self.front.place()))
        self.assertIn(image, self.image_names())
        self.did(self.front.tm("delete", self.front.place(vm=2), vm=2))
        self.assertNotIn(image, self.image_names())

    def test_a_persistent_image_becomes_what_its_vm_made_of_it(self) -> None:
        source = self.registered(self.fresh())
        before = self.front.record(source)
        machine = self.run_vm(source, Machine(disks=SAVED), "ln")
        self.shell(machine, "echo changed > /changed; rm /fresh")
        self.ok("shutdown", machine, lcm=SHUTDOWN)
        self.did(self.front.tm("mvds", self.front.place(), source))
        after = self.front.record(source)
        self.assertNotEqual(before.image, after.image)
        self.assertEqual(before.reference, after.reference)
        self.assertEqual({"onedock/one-1:disk.0"}, self.held())
        self.did(self.front.tm("delete", self.front.place("")))
        self.assertEqual(set(), self.held())
        again = self.run_vm(source, Machine(2))
        self.assertEqual("changed\n", self.inside(again, "cat", "/changed"))
        self.assertIn("No such file", self.inside(again, "cat", "/fresh"))
        self.ok("cancel", again, lcm=CLEANUP)

    def test_a_persistent_image_becomes_what_its_vm_made_of_it_also_when_it_ends_while_it_is_off(self) -> None:
        """oned calls no action of VMs then: the transfer driver alone sees it."""
        source = self.registered(self.fresh())
        before = self.front.record(source)
        machine = self.run_vm(source, Machine(disks=SAVED), "ln")
        self.shell(machine, "echo changed > /changed")
        self.ok("shutdown", machine, lcm=POWEROFF)
        for _ in range(2):
            self.did(self.front.tm("mvds", self.front.place(), source))
            self.assertNotEqual(before.image, self.front.record(source).image)
        self.did(self.front.tm("delete", self.front.place("")))
        again = self.run_vm(source, Machine(2))
        self.assertEqual("changed\n", self.inside(again, "cat", "/changed"))
        self.ok("cancel", again, lcm=CLEANUP)

    @levels.exhaustive("the other one of its kind stays")
    def test_one_that_was_not_run_stays_what_it_was(self) -> None:
        source = self.registered(self.fresh())
        before = self.front.record(source)
        self.cloned(source, Machine(), "ln")
        self.did(self.front.tm("mvds", self.front.place(), source))
        self.assertEqual(before, self.front.record(source))

    def test_a_running_vm_is_saved_as_an_image(self) -> None:
        machine = self.run_vm(self.registered(self.fresh()))
        self.shell(machine, "echo saved > /saved")
        target = self.did(self.front.ds("mkfs", {"FORMAT": "save_as"}))
        self.addCleanup(lambda: self.did(self.front.ds("rm", {"SOURCE": target})))
        self.did(self.front.tm("cpds", self.front.place(), target, "raw", "-1"))
        self.assertEqual({"onedock/one-1:disk.0", "onedock/one-1:root"}, self.held())
        self.failed("disk snapshots", self.front.tm("cpds", self.front.place(), target, "0"))
        other = self.run_vm(target, Machine(2))
        self.assertEqual("saved\n", self.inside(other, "cat", "/saved"))
        for one in (machine, other):
            self.ok("cancel", one, lcm=CLEANUP)

    def test_a_vm_moves_to_another_host_in_a_shared_directory(self) -> None:
        """Each host releases the image when the VM leaves it, though the directory stays."""
        machine = self.run_vm(self.registered(self.fresh()))
        self.shell(machine, "echo moved > /moved")
        for here, there in (("node1", "node2"), ("node2", "node1")):
            self.ok("cancel", machine, lcm=UNDEPLOY)
            directories = [self.front.place("").replace("node1:", f"{host}:") for host in (here, there)]
            self.did(self.front.tm("mv", *directories))
            self.assertEqual(set(), self.held())
            self.ok("deploy", machine, lcm=32)
            self.assertEqual("moved\n", self.inside(machine, "cat", "/moved"))
        self.ok("cancel", machine, lcm=CLEANUP)

    def test_a_vm_moves_to_another_host_with_what_it_wrote(self) -> None:
        machine = self.run_vm(self.registered(self.fresh()))
        self.shell(machine, "echo moved > /moved")
        self.ok("cancel", machine, lcm=UNDEPLOY)
        self.did(self.front.tm("mv", self.front.place(), self.front.place(host="node2")))
        self.did(self.front.tm("mv", self.front.place(""), self.front.place("", "node2")))
        self.assertFalse((self.front.directory() / "1").exists())
        self.assertEqual(set(), self.held())
        moved = self.front.directory("node2") / "1"
        self.assertEqual(["disk.0", "disk.0.tar"], sorted(os.listdir(moved)))
        self.did(self.front.tm("mv", self.front.place("", "node2"), self.front.place("")))
        self.ok("deploy", machine, lcm=32)
        self.assertEqual("moved\n", self.inside(machine, "cat", "/moved"))
        self.ok("cancel", machine, lcm=CLEANUP)

    @contextmanager
    def without_docker(self) -> Iterator[None]:
        """The node's Docker is down: dockerd takes its socket away when it ends."""
        conf = Path(self.node.environment["ONEDOCK_CONF"])
        before = conf.read_text()
        conf.write_text(before.replace(self.node.docker.daemon.endpoint, f"unix://{self.node.base}/none.sock"))
        try:
            yield
        finally:
            conf.write_text(before)

    def test_nothing_moves_ends_or_changes_while_docker_is_down(self) -> None:
        """Its containers have what their VMs wrote, and may run on."""
        machine = self.run_vm(self.registered(self.fresh()))
        self.shell(machine, "echo moved > /moved")
        self.ok("shutdown", machine, lcm=POWEROFF)
        there, before = self.front.place("", "node2"), sorted(os.listdir(self.front.directory() / "1"))
        with self.without_docker():
            for action, arguments in (("mv", (self.front.place(""), there)), ("delete", (self.front.place(""),)),
                                      ("delete", (self.front.place(),)), ("snap_delete", (self.front.place(), 0))):
                self.failed("none.sock", self.front.tm(action, *arguments))
            self.assertEqual(before, sorted(os.listdir(self.front.directory() / "1")))
            self.assertFalse((self.front.directory("node2") / "1").exists())
        self.ok("deploy", machine, lcm=RESUME)
        self.assertEqual("moved\n", self.inside(machine, "cat", "/moved"))
        self.ok("cancel", machine, lcm=CLEANUP)

    def test_no_vm_leaves_whose_container_docker_does_not_have_any_more(self) -> None:
        """Where Docker's data root is not mounted its list is empty, and what the VM wrote still there."""
        machine = self.run_vm(self.registered(self.fresh()), Machine(disks=SAVED), "ln")
        self.ok("shutdown", machine, lcm=POWEROFF)
        self.engine.delete(machine.name)
        self.failed("was not removed by this driver", self.front.tm("mv", self.front.place(""),
                                                                    self.front.place("", "node2")))
        for lcm in (UNDEPLOY, SHUTDOWN):
            self.refused("was not removed by this driver", "shutdown", machine, lcm=lcm)
        self.assertTrue((self.front.directory() / "1/disk.0").exists())
        self.ok("cancel", machine, lcm=CLEANUP)

    @levels.exhaustive("the other one of its kind stays")
    def test_no_old_archive_is_saved_for_a_container_that_docker_does_not_have_any_more(self) -> None:
        """The archive beside the disk is of the time when the VM last came to this host."""
        machine = self.run_vm(self.registered(self.fresh()))
        self.ok("cancel", machine, lcm=UNDEPLOY)
        self.ok("deploy", machine, lcm=BOOT_UNDEPLOYED)
        target = self.did(self.front.ds("mkfs", {"FORMAT": "save_as"}))
        self.addCleanup(lambda: self.did(self.front.ds("rm", {"SOURCE": target})))
        self.engine.delete(machine.name)
        self.failed("was not removed by this driver", self.front.tm("cpds", self.front.place(), target, "-1"))
        self.assertFalse(Path(target).exists())
        self.ok("cancel", machine, lcm=CLEANUP)

    def test_images_that_there_are_not(self) -> None:
        for action, arguments in (
            ("clone", (f"front-end:{self.front.datastore}/{'0' * 32}.image", self.front.place())),
            ("ln", (f"front-end:{self.front.datastore}/{'0' * 32}.raw", self.front.place())),
            ("clone", ("front-end:/etc/passwd", self.front.place())),
        ):
            self.assertNotEqual(0, self.front.tm(action, *arguments).status)
        self.failed("cannot be reached over ssh", self.front.tm(
            "clone", f"front-end:{self.registered(self.fresh())}", self.front.place(host="node9")))

    def test_a_layer_that_was_damaged_in_the_datastore_is_refused_by_the_engine(self) -> None:
        source = self.registered(self.fresh())
        directory = Store(self.front.datastore).directory(self.front.record(source))
        # Docker reads no layer that it has; the one on top is like no other.
        with min(directory.glob("?" * 64), key=lambda path: path.stat().st_size).open("rb+") as file:
            flip(file, 520)
        self.failed("", self.front.tm("clone", f"front-end:{source}", self.front.place()))
        self.assertEqual(set(), self.held())


def flip(file: BinaryIO, place: int) -> None:
    file.seek(place)
    (byte,) = file.read(1)
    file.seek(place)
    file.write(bytes([byte ^ 1]))


class RegistryCase(TransferCase):
    def pushed(self, registry: Registry) -> str:
        """:returns: the digest of what was pushed, which the engine does not have any more"""
        self.useFixture(registry)
        api = self.node.docker.daemon.api()
        api.tag(self.made(), f"{HOST}/team/tool", "1")
        told = list(api.push(f"{HOST}/team/tool", "1", stream=True, decode=True,
                             auth_config={"username": USER, "password": WORD}))
        api.remove_image(f"{HOST}/team/tool:1")
        return next(line["aux"]["Digest"] for line in told if "aux" in line)


@levels.exhaustive("one that a node fetches itself stays",
                   tests=("test_an_image_that_the_administrator_fetched_stays",))
class RegistryTest(RegistryCase):
    def credentials(self) -> dict[str, str]:
        path = self.front.files.parent / "credentials.json"
        path.write_text(json.dumps({"auths": {HOST: {"username": USER, "password": WORD}}}))
        path.chmod(0o600)
        return {"ONEDOCK_CREDENTIALS_FILE": str(path), "ONEDOCK_PLAIN_HOSTS": HOST}

    def test_an_image_of_a_registry_is_pinned_and_run(self) -> None:
        digest = self.pushed(Registry())
        source = self.registered(f"docker://{HOST}/team/tool:1", ONEDOCK_PLAIN_HOSTS=HOST)
        self.assertEqual(f"docker://{HOST}/team/tool:1@{digest}", self.front.record(source).reference)
        self.ok("cancel", self.run_vm(source), lcm=CLEANUP)

    @levels.exhaustive("the other one of its kind stays")
    def test_reference_accepted_as_oneimage_writes_it(self) -> None:
        digest = self.pushed(Registry())
        for directory in ("/", "/root/", "/home/some one/docker:/"):
            path = f"{directory}docker://{HOST}/team/tool:1"
            self.assertIn(int(self.did(self.front.ds("stat", {"PATH": path}, ONEDOCK_PLAIN_HOSTS=HOST))), range(1, 10))
            source = self.registered(path, ONEDOCK_PLAIN_HOSTS=HOST)
            self.assertEqual(f"docker://{HOST}/team/tool:1@{digest}", self.front.record(source).reference)

    def test_credentials_open_a_registry_and_are_told_nobody(self) -> None:
        self.pushed(Registry(closed=True))
        path = {"PATH": f"docker://{HOST}/team/tool:1"}
        self.failed("ONEDOCK_CREDENTIALS_FILE", self.front.ds("cp", path, ONEDOCK_PLAIN_HOSTS=HOST))
        self.registered(path["PATH"], **self.credentials())
        self.failed("there is no image", self.front.ds("cp", {"PATH": f"docker://{HOST}/team/tool:2"},
                                                       **self.credentials()))
        self.assertIn(int(self.did(self.front.ds("stat", path, **self.credentials()))), range(1, 10))

    def test_a_node_fetches_it_itself(self) -> None:
        self.pushed(Registry(closed=True))
        source = self.registered(f"docker://{HOST}/team/tool:1", ONEDOCK_KEEP_LAYERS="NO", **self.credentials())
        self.assertEqual([source], [str(path) for path in self.front.datastore.rglob("*") if path.is_file()])
        machine = self.run_vm(source)
        self.assertEqual({"onedock/one-1:disk.0", "onedock/one-1:root"}, self.held())
        self.ok("cancel", machine, lcm=CLEANUP)

    def test_an_image_that_the_administrator_fetched_stays(self) -> None:
        """By its digest, so that no tag keeps it: before the VM comes, or while it comes."""
        digest = self.pushed(Registry(closed=True))
        source = self.registered(f"docker://{HOST}/team/tool:1", ONEDOCK_KEEP_LAYERS="NO", **self.credentials())
        api = self.node.docker.daemon.api()
        name = f"{HOST}/team/tool@{digest}"
        for _ in range(2):
            api.pull(name, auth_config={"username": USER, "password": WORD})
            machine = self.run_vm(source)
            self.ok("cancel", machine, lcm=CLEANUP)
            self.did(self.front.tm("delete", self.front.place(), vm=1))
            self.assertEqual([name], api.inspect_image(name)["RepoDigests"])
        images = NodeImages(self.engine.client, FileLock(self.front.files / "lock", LOCK_TIMEOUT), self.node.state)
        asked = {"reference": f"docker://{name}", "user": USER, "password": WORD}
        place = ("onedock/one-1", "disk.0")
        images.pull(place, self.front.record(source).image, io.BytesIO(json.dumps(asked).encode()))
        images.release(place)
        self.assertEqual([name], api.inspect_image(name)["RepoDigests"])
        api.remove_image(name)


class DataTest(TransferCase):
    def block(self) -> str:
        source = self.did(self.front.ds("mkfs", {"TYPE": "2", "SIZE": "8", "FS": "ext4"}))
        self.addCleanup(lambda: self.did(self.front.ds("rm", {"SOURCE": source})))
        self.addCleanup(lambda: self.did(self.front.tm("delete", self.front.place(""))))
        return source

    def test_a_vm_with_disks_of_data(self) -> None:
        kept = self.block()
        machine = Machine(disks=Machine().disks + DATA)
        self.cloned(self.registered(self.fresh()), machine)
        self.did(self.front.tm("ln", f"front-end:{kept}", self.front.place("disk.1")))
        self.did(self.front.tm("mkimage", 8, "raw", self.front.place("disk.2")))
        for name in ("disk.1", "disk.2"):  # not for every user of the node
            self.assertEqual(0, self.file(machine, name).stat().st_mode & 0o007)
        self.ok("deploy", machine, lcm=BOOT)
        for number in (1, 2):
            self.assertEqual("", self.shell(machine, f"echo hello > /media/{number}/hello"))
        self.ok("shutdown", machine, lcm=SHUTDOWN)
        self.did(self.front.tm("mvds", self.front.place("disk.1"), kept))
        found = subprocess.run(["debugfs", "-R", "cat /hello", kept], capture_output=True, text=True, check=True)
        self.assertEqual("hello\n", found.stdout)

    def with_volatile(self) -> Machine:
        """A running VM with a file on a volatile disk of 8 MiB, which is disk 2."""
        machine = Machine(disks=ROOT + disk(2))
        self.cloned(self.registered(self.fresh()), machine)
        self.did(self.front.tm("mkimage", 8, "raw", self.front.place("disk.2")))
        self.ok("deploy", machine, lcm=BOOT)
        self.addCleanup(self.ok, "cancel", machine, lcm=CLEANUP)
        self.shell(machine, "head -c 3000000 /dev/urandom > /media/2/content")
        return machine

    def checksum(self, machine: Machine) -> str:
        return self.shell(machine, "sha256sum < /media/2/content")

    def require_clean(self, path: Path) -> None:
        done = subprocess.run(["e2fsck", "-f", "-n", path], capture_output=True, text=True, check=False)
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        told = subprocess.run(["dumpe2fs", "-h", path], capture_output=True, text=True, check=True).stdout
        self.assertNotIn("needs_recovery", told)  # as of one that is copied while it is mounted

    def test_resize_of_a_running_vm_touches_no_mounted_file_system(self) -> None:
        machine, place, path = self.with_volatile(), self.front.place("disk.2"), self.file(Machine(), "disk.2")
        before = self.checksum(machine)
        self.shell(machine, "for n in $(seq 200); do echo $n > /media/2/$n; done")
        self.did(self.front.tm("resize", place, 32))
        self.assertEqual(8 << 20, path.stat().st_size)
        self.failed("cannot become smaller", self.front.tm("resize", place, 4))
        self.ok("save", machine, lcm=SUSPEND)
        self.did(self.front.tm("resize", place, 32))
        self.ok("restore", machine, lcm=RESTORE)
        grown = machine.changed(disks=ROOT + disk(2).replace("<SIZE>8", "<SIZE>32"))
        if may_grow():
            self.ok("resize_disk", grown, "2", "32", "message", "node1")
        else:
            self.refused("CAP_SYS_RESOURCE", "resize_disk", grown, "2", "32", "message", "node1")
            self.assertEqual(8 << 20, path.stat().st_size)
        self.assertEqual(before, self.checksum(machine))
        self.assertEqual("200\n", self.inside(machine, "cat", "/media/2/200"))
        self.ok("shutdown", machine, lcm=POWEROFF)
        self.did(self.front.tm("resize", place, 64))
        self.require_clean(path)
        self.ok("deploy", machine, lcm=RESUME)
        self.assertEqual(before, self.checksum(machine))
        self.assertGreater(int(self.shell(machine, "df -k /media/2 | tail -1 | awk '{print $2}'")), 40_000)

    def test_resize_of_the_root_changes_nothing(self) -> None:
        machine, path = self.with_volatile(), self.file(Machine(), "disk.0")
        before = path.read_bytes()
        for _ in range(2):
            self.failed("whose size Docker fixes", self.front.tm("resize", self.front.place(), 512))
            self.assertEqual(before, path.read_bytes())
            self.ok("shutdown", machine, lcm=POWEROFF)
        self.ok("deploy", machine, lcm=RESUME)

    def test_a_disk_reverted_while_its_vm_is_off_is_what_the_vm_has_afterwards(self) -> None:
        machine, place = self.with_volatile(), self.front.place("disk.2")
        before = self.checksum(machine)
        self.failed("power the VM off", self.front.tm("snap_create", place, 0))
        self.ok("shutdown", machine, lcm=POWEROFF)
        self.did(self.front.tm("snap_create", place, 0))
        self.require_clean(self.file(machine, "disk.2.snap/0"))
        self.ok("deploy", machine, lcm=RESUME)
        self.shell(machine, "echo other > /media/2/content")
        self.ok("shutdown", machine, lcm=POWEROFF)
        self.did(self.front.tm("snap_revert", place, 0))
        self.ok("deploy", machine, lcm=RESUME)
        self.assertEqual(before, self.checksum(machine))
        self.failed("no disk snapshots", self.front.tm("snap_create", self.front.place(), 0))

    def busy(self, machine: Machine) -> None:
        """Let two processes of the container write to the disk without a pause, one of them many small files."""
        for script in ("while :; do head -c 100000 /dev/urandom > /media/2/busy; done",
                       "while :; do for n in $(seq 50); do echo > /media/2/small$n; rm /media/2/small$n; done; done"):
            self.shell(machine, f"({script}) > /dev/null 2>&1 &")
        await_that(lambda: self.is_written(machine), "it is written to")

    def is_written(self, machine: Machine) -> bool:
        before = self.shell(machine, "stat -c %y%i /media/2/busy")
        time.sleep(0.3)
        return before != self.shell(machine, "stat -c %y%i /media/2/busy")

    def in_image(self, path: Path | str) -> str:
        found = subprocess.run(["debugfs", "-R", "cat /content", path], capture_output=True, check=True)
        return f"{hashlib.sha256(found.stdout).hexdigest()}  -\n"

    def test_disk_of_a_running_vm_is_copied_as_it_is_at_one_moment(self) -> None:
        machine, place = self.with_volatile(), self.front.place("disk.2")
        before, target = self.checksum(machine), self.block()
        self.busy(machine)
        for number in (0, 1):
            self.did(self.front.tm("snap_create_live", place, number))
            path = self.file(machine, f"disk.2.snap/{number}")
            self.require_clean(path)
            self.assertEqual((before, 0), (self.in_image(path), path.stat().st_mode & 0o007))
        self.did(self.front.tm("cpds", place, target, "raw", "-1"))
        self.require_clean(Path(target))
        self.assertEqual(before, self.in_image(target))
        await_that(lambda: self.is_written(machine), "it is written to again")
        self.assertEqual(["disk.0", "disk.2", "disk.2.snap"], sorted(os.listdir(self.file(machine, ""))))
        self.failed("no disk snapshots", self.front.tm("snap_create_live", self.front.place(), 0))
        self.shell(machine, "echo other > /media/2/content")
        self.ok("shutdown", machine, lcm=POWEROFF)
        self.did(self.front.tm("snap_revert", place, 0))
        self.ok("deploy", machine, lcm=RESUME)
        self.assertEqual(before, self.checksum(machine))

    def test_nothing_stays_frozen_when_a_copy_is_killed_or_fails(self) -> None:
        machine, place = self.with_volatile(), self.front.place("disk.2")
        self.busy(machine)
        with self.node.stuck("cp", f"touch {self.front.files}/begun; exec sleep 600"):
            words = [self.front.scripts / "tm/onedock/snap_create_live", place, "0", "1", "101"]
            with subprocess.Popen(words, env=self.node.environment, stdin=subprocess.DEVNULL,
                                  start_new_session=True) as process:
                await_that((self.front.files / "begun").exists, "the disk is copied")
                self.assertFalse(self.is_written(machine))
                os.killpg(process.pid, signal.SIGKILL)
        await_that(lambda: self.is_written(machine), "it is thawed")
        snapshots = self.file(machine, "disk.2.snap")
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", snapshots], check=True)
        try:
            self.failed("No space left", self.front.tm("snap_create_live", place, 0))
            self.assertEqual([], os.listdir(snapshots))
        finally:
            subprocess.run(["umount", snapshots], check=True)
        await_that(lambda: self.is_written(machine), "it is thawed")
        self.did(self.front.tm("snap_create_live", place, 0))
        self.require_clean(self.file(machine, "disk.2.snap/0"))

    def test_a_disk_that_something_else_uses_is_not_resized(self) -> None:
        machine, path = self.with_volatile(), self.file(Machine(), "disk.2")
        self.ok("shutdown", machine, lcm=POWEROFF)
        self.did(self.front.tm("resize", self.front.place("disk.2"), 9))
        loop = subprocess.run(["losetup", "--find", "--show", path], check=True, capture_output=True,
                              text=True).stdout.strip()
        try:
            self.failed(loop, self.front.tm("resize", self.front.place("disk.2"), 16))
        finally:
            subprocess.run(["losetup", "--detach", loop], check=True)
        self.assertEqual(9 << 20, path.stat().st_size)

    def test_a_disk_that_is_full(self) -> None:
        full = self.node.base / "node2"
        full.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", full], check=True)
        self.addCleanup(subprocess.run, ["umount", full], check=True)
        source = self.block()
        with Path(source).open("rb+") as file:
            file.seek(1 << 20)
            file.write(os.urandom(2 << 20))
        self.failed("No space left", self.front.tm("clone", f"front-end:{source}", self.front.place("disk.1", "node2")))
        self.assertEqual([], [path for path in full.rglob("*") if path.is_file() and path.name != ".monitor"])
