# SPDX-License-Identifier: Apache-2.0
"""Bad input, by the installed scripts on a real engine: refused with a reason for oned to show, and nothing is left."""

import os
import re
import subprocess
from pathlib import Path

from onedriver import actions
from onedriver.node.names import name
from tests import levels
from tests.functional_docker.dockerd import Daemon
from tests.functional_one.vms import ROOT, Machine
from tests.functional_onedock.base import BOOT, CLEANUP, POWEROFF, RESUME, OnedockCase, own
from tests.functional_onedock.registry import HOST, Registry
from tests.functional_onedock.test_parts import MARK, disk
from tests.functional_onedock.transfercase import RegistryCase, TransferCase, flip
from tests.unit.onedock.images import Image

HOSTILE = "$(touch /tmp/pwned); `touch /tmp/pwned` | ../../etc/passwd & \" < \\ \n -rf %s"
LEAF = re.compile(r"<([A-Z0-9_]+)>([^<>]*|<!\[CDATA\[.*?\]\]>)</\1>")
WHOSE = {"VMID", "ID", "OID"}  # of the VM itself: oned's own numbers, which the scripts' arguments have too
WORD = "".join(letter for letter in HOSTILE if letter not in "'\n")


class ImagesTest(TransferCase):
    inline = False

    def taken(self, data: bytes, name: str = "bad.tar") -> Path:
        path = self.front.files / name
        path.write_bytes(data)
        return path

    def not_registered(self, words: str, path: Path | str, **attributes: str) -> None:
        self.failed(words, self.front.ds("cp", {"PATH": str(path)}, **attributes))
        self.assertEqual([], [entry for entry in self.front.datastore.rglob("*") if entry.is_file()])

    def test_references_that_do_not_exist(self) -> None:
        plain = {"ONEDOCK_PLAIN_HOSTS": HOST}
        self.not_registered(HOST, f"docker://{HOST}/team/tool:1", **plain)
        self.useFixture(Registry())
        self.not_registered("there is no image", f"docker://{HOST}/team/tool:1", **plain)
        for reference in ("docker://", "docker://UPPER case", f"docker://{HOST}/a@sha256:12", "docker:///../x"):
            self.not_registered("", reference, **plain)

    def test_archives_of_another_machine_or_damaged(self) -> None:
        whole = Image().saved()
        damaged = bytearray(whole)
        damaged[whole.index(b"two")] ^= 1
        for data, words in ((Image(architecture="s390x").saved(), "s390x"), (whole[:len(whole) // 2], ""),
                            (b"no archive" * 500, ""), (b"", ""), (bytes(damaged), "sha256:"),
                            (Image().saved({"manifest.json": b"["}), "JSON"),
                            (Image().saved(images=[]), ""),
                            (Image().saved(images=[{"Config": "../../etc/passwd"}]), "")):
            self.not_registered(words, self.taken(data))


class DigestsTest(RegistryCase):
    """Test a registry that hands out other content than was requested."""

    inline = False

    def damage(self, digest: str) -> None:
        """In the registry's own directory."""
        blob = self.registry.directory / "data/docker/registry/v2/blobs/sha256" / digest[7:9] / digest[7:] / "data"
        with blob.open("rb+") as file:
            flip(file, 20)

    def test_a_blob_that_was_exchanged(self) -> None:
        self.registry = Registry()
        digest = self.pushed(self.registry)
        plain = {"ONEDOCK_PLAIN_HOSTS": HOST}
        wrong = f"docker://{HOST}/team/tool@sha256:{'0' * 64}"
        self.failed("there is no image", self.front.ds("cp", {"PATH": wrong}, **plain))
        source = self.registered(f"docker://{HOST}/team/tool@{digest}", ONEDOCK_KEEP_LAYERS="NO", **plain)
        self.damage(digest)
        self.failed("", self.front.ds("cp", {"PATH": f"docker://{HOST}/team/tool@{digest}"}, **plain))
        # A node that fetches it itself does not take it either.
        self.failed("", self.front.tm("clone", f"front-end:{source}", self.front.place()))
        self.assertEqual(set(), self.held())


class AttributesTest(OnedockCase):
    """Every element of a VM, one after another, is a text that a shell, a path or a format would act on."""

    inline = False

    def setUp(self) -> None:
        super().setUp()
        self.machine = Machine(
            devices=(self.gpus[0],), nics=(0,), disks=ROOT + disk(2), context=(("ETH0_MAC", Machine().mac(0)),
                                                                               ("ETH0_IP", "10.1.0.5"), ("KEY", "x")),
            nic_more="<MTU>1500</MTU><INBOUND_AVG_BW>1000</INBOUND_AVG_BW>",
            more=own(DOCKER_ENVIRONMENT="A=b", DOCKER_WORKDIR="/", DOCKER_USER="0", DOCKER_HOSTNAME="web",
                     DOCKER_READ_ONLY="NO", DOCKER_RAW="shm-size=8", DOCKER_HEALTH_COMMAND="true",
                     DOCKER_HEALTH_RETRIES="3"))
        self.node.give_disk(self.machine)
        self.node.give_file_system(self.machine, 2)
        self.addCleanup(Path("/tmp/pwned").unlink, missing_ok=True)

    def nothing_ran(self) -> None:
        self.assertFalse(Path("/tmp/pwned").exists())

    def test_of_a_deployment(self) -> None:
        self.node.inline = True  # one by one by the script would take minutes; the next test does
        whole = self.machine.deployment(BOOT)
        leaves = [match for match in LEAF.finditer(whole) if match[1] not in WHOSE]
        self.assertGreater(len(leaves), 40)
        for match in leaves:
            text = f"{whole[:match.start()]}<{match[1]}><![CDATA[{HOSTILE}]]></{match[1]}>{whole[match.end():]}"
            result = self.node.run("deploy", ["/x", "node1", "1", "node1"], text)
            self.assertNotIn("a mistake in the driver", result.reason, f"{match[1]}: {result.err}")
            self.assertEqual(result.status == 0, result.reason == "", f"{match[1]}: {result.err}")
            if result.status == 0:
                self.assertNotIn("pwned", self.shell(self.machine, "ls /tmp 2>/dev/null"))
                self.ok("cancel", self.machine, lcm=CLEANUP)
            self.nothing_ran()
            self.nothing_is_left()

    def test_of_the_arguments_of_every_action(self) -> None:
        machine = self.machine.changed(disks=ROOT + disk(2, MARK))
        for action, names in actions.ARGUMENTS.items():
            for place in range(len(names) + 2):
                words = [f"{number}" for number in range(len(names))] + ["1", "node1"]
                words[place] = WORD
                xml = machine.deployment(BOOT) if action == "deploy" else machine.message(3)
                result = self.node.run(action, words, xml) if place != len(names) + 1 else None
                if result:
                    self.assertNotIn("a mistake in the driver", result.reason, result.err)
                    self.assertNotEqual(result.status == 0, bool(result.reason), result.err)
                self.nothing_ran()
            self.ok("cancel", self.machine, lcm=CLEANUP)

    def test_of_a_command(self) -> None:
        machine = self.deployed(Machine())
        result = self.node.run("exec", ["1", "node1", WORD.replace('"', "")], machine.message(17))
        self.assertEqual((0, ""), (result.status, result.reason), result.err)
        self.assertIn("No such file", self.inside(machine, "ls", "/tmp/pwned"))
        self.nothing_ran()


class DevicesTest(OnedockCase):
    inline = False

    def test_a_device_that_is_not_there(self) -> None:
        machine = Machine(devices=(self.gpus[0],))
        self.node.give_disk(machine)
        text = machine.deployment(BOOT)
        for address in ("0000:ee:00:0", "0000:3b:00:7", "", "x"):
            changed = re.sub("<ADDRESS>.*?</ADDRESS>", f"<ADDRESS>{address}</ADDRESS>", text)
            result = self.node.run("deploy", ["/x", "node1", "1", "node1"], changed)
            self.assertNotEqual((0, ""), (result.status, result.reason))
            self.assertNotIn("a mistake", result.reason)
            self.nothing_is_left()


class FullTest(OnedockCase):
    """Docker's own storage is full."""

    inline = False

    def daemon(self) -> Daemon:
        daemon = Daemon()
        data = daemon.base / "data"
        data.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "small", data], check=True)
        self.data = data
        return daemon

    @levels.exhaustive("test_refusals fills the disk")
    def test_every_action_that_writes(self) -> None:
        machine = self.deployed(Machine(nics=(0,)))
        self.shell(machine, "echo written > /kept")
        second = Machine(2)
        self.node.give_disk(second)
        with (self.data / "filler").open("wb") as filler:
            self.fill(filler.fileno())
        self.refused("o space left", "deploy", second, lcm=BOOT)
        self.assertFalse(self.engine.exists(name(2)))
        self.refused("o space left", "snapshot_create", machine, "0")
        self.ok("cancel", machine, lcm=POWEROFF)
        (self.data / "filler").unlink()
        self.ok("deploy", machine, lcm=RESUME)
        self.assertEqual("written\n", self.inside(machine, "cat", "/kept"))

    @staticmethod
    def fill(handle: int) -> None:
        try:
            while True:
                os.write(handle, bytes(1 << 16))
        except OSError:
            os.fsync(handle)
