# SPDX-License-Identifier: Apache-2.0
"""The user of OpenNebula owns the datastores: root follows none of his links and opens no file that is not his."""

import os
import shutil
import stat
import subprocess
from pathlib import Path

from tests.functional_one.test_disks import volatile
from tests.functional_one.vms import Machine
from tests.functional_onedock.base import BOOT, CLEANUP, POWEROFF, RESUME, OnedockCase
from tests.functional_onedock.test_life import SAVED

ONEADMIN = 59869  # an unprivileged user
TEXT = '{"image": "of root"}\n'


class DatastoreOwnerTest(OnedockCase):
    def setUp(self) -> None:
        super().setUp()
        self.secret, self.victim = self.node.base / "secret", self.node.base / "victim"
        self.secret.write_text(TEXT)
        self.secret.chmod(0o600)
        self.addCleanup(self.nothing_of_root_changed)

    def nothing_of_root_changed(self) -> None:
        found = self.secret.stat()
        self.assertEqual((TEXT, 0, 0o600), (self.secret.read_text(), found.st_uid, stat.S_IMODE(found.st_mode)))
        self.assertFalse(os.path.lexists(self.victim))

    def given(self, machine: Machine) -> Path:
        self.node.give_disk(machine)
        self.own()
        return self.node.directory(machine)

    def own(self) -> None:
        subprocess.run(["chown", "--recursive", "--no-dereference", f"{ONEADMIN}:{ONEADMIN}",
                        str(self.node.datastores)], check=True)

    def test_root_disk_that_is_a_file_of_root_or_a_fifo_is_refused(self) -> None:
        machine = Machine()
        disk = self.given(machine) / "disk.0"
        for make in (lambda: disk.symlink_to(self.secret), lambda: os.link(self.secret, disk),
                     lambda: os.mkfifo(disk)):
            disk.unlink()
            make()
            result = self.refused("", "deploy", machine, lcm=BOOT)
            self.assertNotIn("of root", result.err)
            self.assertTrue("is not in a datastore" in result.reason or "belongs to user 0" in result.reason
                            or "is not a regular file" in result.reason, result.reason)

    def test_what_a_vm_wrote_is_kept_in_no_file_of_root(self) -> None:
        machine = Machine(disks=SAVED)
        directory = self.given(machine)
        self.ok("deploy", machine, lcm=BOOT)
        self.addCleanup(self.ok, "cancel", machine, lcm=CLEANUP)
        archive = directory / "disk.0.tar"
        archive.symlink_to(self.secret)
        for name in ("disk.0", "disk.0.tar"):
            (directory / f"{name}.unfinished").symlink_to(self.victim)
            # Names that earlier releases wrote to: by the number of the process, which can be guessed.
            for number in range(os.getpid(), os.getpid() + 2):
                (directory / f".{name}.{number}").symlink_to(self.victim)
        self.ok("shutdown", machine, lcm=12)
        for name in ("disk.0", "disk.0.tar"):
            found = (directory / name).lstat()
            self.assertEqual((True, ONEADMIN), (stat.S_ISREG(found.st_mode), found.st_uid))

    def test_archive_of_root_that_the_caller_cannot_read_is_not_loaded(self) -> None:
        """Anybody may have a file open that he cannot read, by O_PATH, and hand it to root as standard input."""
        api, archive = self.node.docker.daemon.api(), self.node.base / "archive"
        image = api.commit(api.create_container("polite", ["/bin/true"])["Id"])["Id"]
        with archive.open("wb") as file:
            for piece in api.get_image(image):
                file.write(piece)
        for container in api.containers(all=True):
            api.remove_container(container["Id"])
        api.remove_image(image)
        named = os.open(archive, os.O_PATH)
        self.addCleanup(os.close, named)
        command = ["onedock", "image", "load", "7", "disk.0", image]
        done = subprocess.run(command, stdin=named, env=self.node.environment, capture_output=True, check=False)
        self.addCleanup(subprocess.run, ["onedock", "image", "release", "7", "disk.0"], env=self.node.environment,
                        check=True)
        self.assertNotEqual(0, done.returncode, done)
        self.assertEqual(self.images, self.image_names())

    def test_volume_that_is_a_file_of_root_is_not_mounted(self) -> None:
        machine = Machine(disks=Machine().disks + volatile(1))
        file = self.node.give_file_system(machine, 1)
        roots = self.node.base / "of-root"
        shutil.move(file, roots)
        self.given(machine)
        for make, words in ((lambda: file.symlink_to(roots), "is not in a datastore"),
                            (lambda: os.link(roots, file), "belongs to user 0")):
            make()
            self.refused(words, "deploy", machine, lcm=BOOT)
            file.unlink()
        roots.unlink()

    def test_whole_life_with_datastores_of_another_user(self) -> None:
        machine = Machine(disks=Machine().disks + volatile(1))
        self.node.give_file_system(machine, 1)
        self.given(machine)
        self.ok("deploy", machine, lcm=BOOT)
        self.addCleanup(self.ok, "cancel", machine, lcm=CLEANUP)
        self.ok("cancel", machine, lcm=POWEROFF)
        self.ok("deploy", machine, lcm=RESUME)
