# SPDX-License-Identifier: Apache-2.0
"""Test what VMs on Docker cannot have, whatever a template says: refused with a reason, nothing is changed."""

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import fixtures

from containerhost.engines.contract import Status
from containerhost.engines.docker.images import Images
from containerhost.errors import EngineError
from onedock import imageref
from onedock.imageref import ImageRef
from tests.functional import drivercontract
from tests.functional_docker.base import MiB
from tests.functional_one.vms import Machine
from tests.functional_onedock.base import BOOT, CLEANUP, RESUME, SHUTDOWN, UNDEPLOY, OnedockCase, own
from tests.functional_onedock.test_life import SAVED

HOSTILE = "$(touch /pwned); `reboot` | ../../etc\" ' \\ \n"


class RefusalsTest(drivercontract.RefusalsContract, OnedockCase):
    absent = "unix:///nonexistent/docker.sock"

    def test_what_cannot_be_is_refused_and_changes_nothing(self) -> None:
        machine = Machine()
        self.node.give_disk(machine)
        disk = "<DISK><DISK_ID>1</DISK_ID><TYPE>{}</TYPE><SIZE>4</SIZE></DISK>"
        for changed, words in (
            (machine.changed(disks=machine.disks + disk.format("swap")), "disk 1 is swap space"),
            (machine.changed(disks=machine.disks + disk.format("CDROM")), "disk 1 is of type CDROM"),
            (machine.changed(disks=""), "no disk with an image"),
            (machine.changed(more=own(DOCKER_PRIVILEGED="yes")), "the template has DOCKER_PRIVILEGED"),
            (machine.changed(more=own(DOCKER_RAW="cap-add=SYS_ADMIN")), "not allowed on this host"),
            (machine.changed(more=own(DOCKER_RAW="privileged=1")), "an administrator can allow"),
            (machine.changed(nics=(0,), bridge="no-such-br"), "no-such-br"),
            (machine.changed(context=(("FILES_DS", "/a"),)), "CONTEXT has FILES_DS"),
            (machine.changed(context=(("DNS", "x;y"),)), "which is not an address"),
            (machine.changed(more="<TOPOLOGY><PIN_POLICY>CORE</PIN_POLICY></TOPOLOGY>"), "the core chose no CPUs"),
            (machine.changed(more="<TOPOLOGY><HUGEPAGE_SIZE>2</HUGEPAGE_SIZE></TOPOLOGY>"), "remove HUGEPAGE_SIZE"),
        ):
            self.refused(words, "deploy", changed, lcm=BOOT)
            self.nothing_is_left()

    def test_shell_text_in_every_attribute_stays_text(self) -> None:
        machine = Machine()
        self.node.give_disk(machine)
        for key in ("DOCKER_ENVIRONMENT", "DOCKER_WORKDIR", "DOCKER_USER", "DOCKER_HOSTNAME", "DOCKER_READ_ONLY",
                    "DOCKER_HEALTH_INTERVAL", "DOCKER_COMMAND", "DOCKER_ENTRYPOINT", "DOCKER_HEALTH_COMMAND"):
            self.refused(key, "deploy", machine.changed(more=own(**{key: HOSTILE})), lcm=BOOT)
        command = "sh -c 'sleep 1000' '$(touch /pwned)' '; touch /pwned'"
        self.deployed(machine.changed(more=own(DOCKER_COMMAND=command)))
        self.assertEqual(["sh", "-c", "sleep 1000", "$(touch /pwned)", "; touch /pwned"],
                         self.inspect(machine)["Config"]["Cmd"])

    def test_what_the_administrator_allows_and_nothing_more(self) -> None:
        self.node.configure('raw_options = ["shm-size", "cap-add", "sysctl"]\n')
        machine = Machine()
        self.node.give_disk(machine)
        for raw, words in (("cap-add=SYS_ADMIN", "not permitted for"), ("pids-limit=9", "not allowed on this"),
                           ("sysctl=kernel.core_pattern=|/x", "of the container's own"),
                           ("shm-size=x", "whole number")):
            self.refused(words, "deploy", machine.changed(more=own(DOCKER_RAW=raw)), lcm=BOOT)
        self.deployed(machine.changed(more=own(
            DOCKER_RAW="shm-size=8 cap-add=net_admin sysctl=net.ipv4.ip_forward=1", DOCKER_READ_ONLY="yes")))
        made = self.inspect(machine)["HostConfig"]
        self.assertEqual((8 * MiB, {"net.ipv4.ip_forward": "1"}, True),
                         tuple(made[key] for key in ("ShmSize", "Sysctls", "ReadonlyRootfs")))
        self.assertEqual(["NET_ADMIN"], [name.removeprefix("CAP_") for name in made["CapAdd"]])
        self.assertIn("Read-only", self.shell(machine, "echo x > /file"))

    def test_actions_that_cannot_be_say_so(self) -> None:
        machine = self.deployed()
        self.refused("without --live", "migrate", machine, "node2", "node1")
        for lcm in (5, 7):
            self.refused("cannot follow it", "save", machine, lcm=lcm)
        self.assertEqual(Status.RUNNING, self.status(machine))
        self.refused("whose size Docker fixes", "resize_disk", machine, "0", "512", "message", "node1")
        self.node.give_disk(Machine(2))
        self.refused("is no longer on this host", "deploy", Machine(2), lcm=RESUME)

    def test_a_container_that_opennebula_did_not_make_is_left_alone(self) -> None:
        client, machine = self.engine.client, Machine()
        self.node.give_disk(machine)
        client.create("one-1", {"Image": "polite", "HostConfig": {"NetworkMode": "none"}})
        for action in ("deploy", "shutdown", "cancel", "reset"):
            self.refused("OpenNebula did not create", action, machine, lcm=BOOT)
        self.assertTrue(self.engine.exists("one-1"))
        client.remove("one-1")

    def test_container_of_an_older_vm_of_the_same_number_is_left_alone(self) -> None:
        """OpenNebula counts anew after its database was restored."""
        machine = self.deployed()
        later = self.later_of_the_same_number(machine)
        self.assertEqual(Status.STOPPED, self.status(machine))
        for _ in range(2):  # the transfer driver's request at the end of the later one
            self.assertEqual(0, self.node.command("onedock drop 1").status)
        self.assertNotEqual(0, self.node.command("onedock leave 1 0").status)
        self.ok("deploy", machine, lcm=BOOT)
        self.ok("cancel", machine, lcm=CLEANUP)
        self.ok("deploy", later, lcm=BOOT)
        self.assertEqual(0, self.node.command("onedock drop 1").status)
        self.assertFalse(self.engine.exists("one-1"))

    def test_a_full_disk_loses_nothing(self) -> None:
        machine = self.deployed(Machine(disks=SAVED))
        self.shell(machine, "echo written > /kept; head -c 4194304 /dev/urandom > /much")
        directory = self.node.directory(machine)
        content = (directory / "disk.0").read_bytes()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "small", str(directory)], check=True)
        try:
            (directory / "disk.0").write_bytes(content)
            for lcm in (SHUTDOWN, UNDEPLOY):
                self.refused("cancel: No space left", "cancel", machine, lcm=lcm)  # first: OpenNebula cuts the text
            self.assertEqual(["disk.0"], [entry.name for entry in directory.iterdir()])
            self.assertEqual(Status.RUNNING, self.status(machine), "the room is found too small before the stop")
        finally:
            subprocess.run(["umount", str(directory)], check=True)
        self.ok("cancel", machine, lcm=SHUTDOWN)
        self.assertIsNotNone(imageref.read(directory / "disk.0").archive)


class ImagesTest(OnedockCase):
    def archive(self, machine: Machine, config: dict[str, str], image: str | None = None,
                tags: list[str] | None = None, more: dict[str, str] | None = None) -> None:
        """A disk that names an archive with an image of nothing.

        :param image: another id than its own
        :param tags: of the archive
        :param more: configuration of a second image in it
        """
        layer = io.BytesIO()
        with tarfile.open(fileobj=layer, mode="w") as tar:
            tar.addfile(tarfile.TarInfo("empty"))
        data = layer.getvalue()
        text = json.dumps({"os": "linux", "config": {"Cmd": ["/x"]}, "rootfs": {
            "type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(data).hexdigest()}"]}, **config}).encode()
        digest = hashlib.sha256(text).hexdigest()
        images = [{"Config": f"{digest}.json", "RepoTags": tags, "Layers": ["layer.tar"]}]
        files = {"layer.tar": data, f"{digest}.json": text}
        if more:
            files["more.json"] = json.dumps(json.loads(text) | more).encode()
            images.append({"Config": "more.json", "RepoTags": None, "Layers": ["layer.tar"]})
        files |= {"manifest.json": json.dumps(images).encode(), "repositories": json.dumps(
            {tag.partition(":")[0]: {"latest": digest} for tag in tags or ()}).encode()}
        with tarfile.open(self.node.directory(machine) / "disk.0.tar", "w") as tar:
            for name, content in files.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
        imageref.write(self.node.directory(machine) / "disk.0",
                       ImageRef(image or f"sha256:{digest}", "docker://x", "disk.0.tar"))

    def test_images_that_are_not_what_the_disk_says(self) -> None:
        machine = Machine()
        disk = self.node.directory(machine) / "disk.0"
        self.refused("cannot be read", "deploy", machine, lcm=BOOT)
        disk.write_bytes(bytes(4096))
        self.refused("does not name an image", "deploy", machine, lcm=BOOT)
        imageref.write(disk, ImageRef("sha256:" + "0" * 64, "docker://no/such:image"))
        self.refused("docker://no/such:image", "deploy", machine, lcm=BOOT)
        imageref.write(disk, ImageRef("sha256:" + "0" * 64, "x", "disk.0.tar"))
        self.refused("cannot be read", "deploy", machine, lcm=BOOT)
        (disk.parent / "disk.0.tar").write_bytes(b"no archive" * 400)
        self.refused("disk.0.tar", "deploy", machine, lcm=BOOT)
        self.archive(machine, {"architecture": "s390x"})
        self.refused("is for s390x, but this host is", "deploy", machine, lcm=BOOT)
        self.nothing_is_left()
        self.archive(machine, {"architecture": "amd64"}, "sha256:" + "1" * 64)
        self.refused("does not contain the image", "deploy", machine, lcm=BOOT)
        self.nothing_is_left()

    def test_an_archive_names_no_image_of_the_host(self) -> None:
        """Neither by tags nor by the file of them that old engines wrote."""
        machine, client = Machine(), self.engine.client
        before = client.image("polite")["Id"]
        self.archive(machine, {"architecture": "amd64"}, tags=["polite:latest", "new:latest"])
        found = imageref.read(self.node.directory(machine) / "disk.0").image
        images = Images(client)
        self.load(images, machine, found)
        self.addCleanup(images.remove, found)
        self.assertEqual(before, client.image("polite")["Id"])
        self.assertFalse(images.has("new:latest"))
        self.assertEqual([], client.image(found)["RepoTags"] or [])

    def test_an_archive_of_several_images_brings_one(self) -> None:
        machine, client = Machine(), self.engine.client
        self.archive(machine, {"architecture": "amd64"}, more={"author": "another image"})
        found = imageref.read(self.node.directory(machine) / "disk.0").image
        before = {image["Id"] for image in client.images()}
        images = Images(client)
        self.load(images, machine, found)
        self.addCleanup(images.remove, found)
        self.assertEqual(before | {found}, {image["Id"] for image in client.images()})

    def test_a_wrong_archive_removes_no_image_that_appears_meanwhile(self) -> None:
        machine, client = Machine(), self.engine.client
        self.archive(machine, {"architecture": "amd64"})
        images, appeared = Images(client), []
        load = client.load_image

        def meanwhile(*arguments: Any) -> None:
            self.docker_container("c9")
            appeared.append(client.commit("c9", "", "", {}))
            load(*arguments)

        self.useFixture(fixtures.MonkeyPatch("containerhost.engines.docker.client.DockerClient.load_image",
                                             lambda client, *arguments: meanwhile(*arguments)))
        self.assertRaises(EngineError, self.load, images, machine, "sha256:" + "1" * 64)
        self.addCleanup(images.remove, appeared[0])
        self.assertTrue(images.has(appeared[0]))

    def load(self, images: Images, machine: Machine, image: str) -> None:
        path = self.node.directory(machine) / "disk.0.tar"
        with path.open("rb") as archive:
            images.load(archive, str(path), image)

    def docker_container(self, name: str) -> None:
        self.engine.client.create(name, {"Image": "polite", "HostConfig": {"NetworkMode": "none"}})
        self.addCleanup(self.engine.client.remove, name)

    def test_an_archive_that_is_a_link_or_a_pipe_is_not_opened(self) -> None:
        machine = Machine()
        self.archive(machine, {"architecture": "amd64"})
        archive = self.node.directory(machine) / "disk.0.tar"
        elsewhere = Path(self.useFixture(fixtures.TempDir()).path) / "elsewhere.tar"
        shutil.move(archive, elsewhere)
        archive.symlink_to(elsewhere)
        self.refused("is not in a datastore", "deploy", machine, lcm=BOOT)
        archive.unlink()
        os.mkfifo(archive)
        self.refused("is not a regular file", "deploy", machine, lcm=BOOT)
        self.nothing_is_left()
