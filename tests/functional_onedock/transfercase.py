# SPDX-License-Identifier: Apache-2.0
"""Share the steps from a datastore to a VM between tests, by the installed scripts."""

import os
from pathlib import Path
from typing import BinaryIO

from tests.functional_one.node import Result
from tests.functional_one.vms import Machine
from tests.functional_onedock.base import BOOT, OnedockCase
from tests.functional_onedock.frontend import FrontEnd
from tests.functional_onedock.registry import HOST, USER, WORD, Registry
from tests.unit.onedock.images import tarball


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
