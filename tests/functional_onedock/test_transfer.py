# SPDX-License-Identifier: Apache-2.0
"""From a datastore to a VM and back, by the installed scripts, on a real dockerd."""

import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from containerhost.linux.lock import FileLock
from onedock import imageref
from onedock.datastore.store import Store
from onedock.nodeimages import NodeImages
from tests import levels
from tests.functional_one.vms import Machine
from tests.functional_onedock.base import BOOT_UNDEPLOYED, CLEANUP, POWEROFF, RESUME, SHUTDOWN, UNDEPLOY
from tests.functional_onedock.registry import HOST, USER, WORD, Registry
from tests.functional_onedock.test_life import SAVED
from tests.functional_onedock.transfercase import RegistryCase, TransferCase, flip

LOCK_TIMEOUT = 5  # s


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
        # Existing data is not sent again: the layers are removed meanwhile.
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
        self.failed("this driver did not remove it", self.front.tm("mv", self.front.place(""),
                                                                   self.front.place("", "node2")))
        for lcm in (UNDEPLOY, SHUTDOWN):
            self.refused("this driver did not remove it", "shutdown", machine, lcm=lcm)
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
        self.failed("this driver did not remove it", self.front.tm("cpds", self.front.place(), target, "-1"))
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
