# SPDX-License-Identifier: Apache-2.0
"""Test disks of data, from a datastore to hosts and back.

Both hosts are this machine, where each has its own directory, and ssh is a stand-in that runs what it is told here; the
engine is not there, as on a front-end."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from unittest import mock

import fixtures
import testtools

from onedock.cli import main
from onedock.datastore import actions as datastore
from onedock.transfer import actions, turns
from onedriver import template
from onedriver.errors import BadInput, DriverError, NotSupported
from onedriver.node import pipes
from tests import levels
from tests.unit.onedock.messages import message
from tests.unit.onedriver.test_disk_paths import METACHARACTERS
from tests.waiting import await_that

ROOT = Path(__file__).parents[4]
SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
case $2 in node1|node2) exec sh -c "$3" ;; esac
echo "ssh: Could not resolve hostname $2: Name or service not known" >&2
exit 255
"""


class TransferTestCase(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.base = Path(self.useFixture(fixtures.TempDir()).path)
        self.datastore = self.base / "101"
        commands = self.base / "bin"
        commands.mkdir()
        for name, text in (("ssh", SSH), ("onedock", f"#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m onedock "
                                          "\"$@\"\n")):
            (commands / name).write_text(text)
            (commands / name).chmod(0o755)
        # A front-end's: neither Docker nor the driver was ever there.
        (self.base / "onedock.toml").write_text(
            f'endpoint = "unix://{self.base}/none.sock"\nstate = "{self.base}/none"\n')
        self.useFixture(fixtures.EnvironmentVariable("PATH", f"{commands}:{os.environ['PATH']}"))
        self.useFixture(fixtures.EnvironmentVariable("ONEDOCK_CONF", str(self.base / "onedock.toml")))
        self.addCleanup(os.umask, os.umask(0o022))
        self.useFixture(fixtures.MockPatchObject(turns, "directory", return_value=self.base))

    def tm(self, action: str, *arguments: object, vm: int = 1) -> None:
        self.assertIsNone(actions.act(action, [*map(str, arguments), str(vm), "101"]))

    def refused(self, words: str, action: str, *arguments: object, kind: type[Exception] = DriverError) -> None:
        error = self.assertRaises(kind, actions.act, action, [*map(str, arguments), "1", "101"])
        self.assertIn(words, str(error))

    def place(self, name: str = "", host: str = "node1", vm: int = 1) -> str:
        return f"{host}:{self.base}//{host}/0/{vm}" + (f"/{name}" if name else "")

    def directory(self, host: str = "node1") -> Path:
        """The VM's."""
        return self.base / host / "0/1"

    def block(self, size: int = 2) -> Path:
        """An empty data image."""
        made = datastore.act("mkfs", ["7"], message(self.datastore, {"TYPE": "2", "SIZE": str(size)}))
        return Path(str(made))

    def left(self, directory: Path) -> list[str]:
        return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


class TurnsTest(TransferTestCase):
    """oned deletes a VM beside an action of it that it has cancelled, and that goes on."""

    def held_up(self) -> tuple[Path, Path]:
        """Let the next request wait; return the directory that it makes, and the one that lets it go on."""
        waits, goes = self.base / "waits", self.base / "goes"
        (self.base / "bin/ssh").write_text(SSH.replace("#!/bin/sh\n", "#!/bin/sh\n"
            f"if mkdir {waits} 2> /dev/null; then while [ ! -e {goes} ]; do sleep 0.05; done; fi\n"))
        return waits, goes

    def test_deletion_waits_for_the_action_before(self) -> None:
        waits, goes = self.held_up()
        making = threading.Thread(target=self.tm, args=("mkimage", "8", "raw", self.place("disk.1")))
        making.start()
        self.addCleanup(making.join)
        self.addCleanup(goes.mkdir, exist_ok=True)
        await_that(waits.exists, "the request begins")
        deleting = threading.Thread(target=self.tm, args=("delete", self.place()))
        deleting.start()
        deleting.join(1)  # it would end at once if it did not wait
        goes.mkdir()
        for thread in (making, deleting):
            thread.join()
        self.assertFalse(self.directory().exists())

    def test_action_that_began_before_the_deletion_does_nothing(self) -> None:
        earlier = turns.began() - 1
        self.tm("delete", self.place())
        self.useFixture(fixtures.MockPatchObject(turns, "began", return_value=earlier))
        self.refused("VM 1 was deleted", "mkimage", "8", "raw", self.place("disk.1"))
        self.assertFalse(self.directory().exists())
        self.tm("mkimage", "8", "raw", self.place("disk.1", vm=2), vm=2)

    def test_deletion_of_one_disk_ends_no_other_action(self) -> None:
        earlier = turns.began() - 1
        self.tm("mkimage", "8", "raw", self.place("disk.1"))
        self.tm("delete", self.place("disk.1"))
        self.useFixture(fixtures.MockPatchObject(turns, "began", return_value=earlier))
        self.tm("mkimage", "8", "raw", self.place("disk.2"))


class DataTest(TransferTestCase):
    def test_a_persistent_image_goes_to_a_host_with_its_snapshots_and_comes_back(self) -> None:
        source, disk = self.block(), self.directory() / "disk.1"
        self.tm("ln", f"front-end:{source}", self.place("disk.1"))
        self.assertEqual(source.read_bytes(), disk.read_bytes())
        self.assertLess(disk.stat().st_blocks * 512, 1 << 20)
        self.assertEqual("onedock\n", (self.base / "node1/0/.monitor").read_text())
        disk.write_text("then")
        self.tm("snap_create", self.place("disk.1"), 3)
        disk.write_text("now")
        self.tm("mvds", self.place("disk.1"), source)
        self.assertEqual(("now", "then"), (source.read_text(), Path(f"{source}.snap/3").read_text()))
        self.tm("delete", self.place("disk.1"))
        self.assertEqual([], self.left(self.directory()))
        self.tm("clone.ssh", f"front-end:{source}", self.place("disk.1"))
        self.tm("snap_revert", self.place("disk.1"), 3)
        self.assertEqual("then", disk.read_text())
        self.tm("cpds", self.place("disk.1"), source, "raw", -1)
        self.assertEqual("then", source.read_text())
        self.tm("snap_delete", self.place("disk.1"), 3)
        self.refused("no snapshot 3", "snap_revert", self.place("disk.1"), 3)
        self.refused("no snapshot 3", "cpds", self.place("disk.1"), source, "raw", 3)
        self.tm("snap_create_live", self.place("disk.1"), 4)
        self.assertEqual("then", Path(f"{disk}.snap/4").read_text())
        self.refused("is not there", "snap_create_live", self.place("disk.7"), 4)
        self.assertEqual(["disk.1", "disk.1.snap/4"], self.left(self.directory()))

    def test_killed_replacement_of_an_image_loses_no_snapshots(self) -> None:
        source, disk = self.block(), self.directory() / "disk.1"
        snapshots = Path(f"{source}.snap")
        snapshots.mkdir()
        (snapshots / "7").write_text("kept")
        self.tm("ln", f"front-end:{source}", self.place("disk.1"))
        disk.write_text("now")
        (Path(f"{disk}.snap") / "7").write_text("newer")
        real, done = os.replace, []

        def killed(old: Path, new: Path) -> None:
            real(old, new)
            done.append(new)
            if new == source:
                raise KeyboardInterrupt

        with mock.patch.object(os, "replace", killed):
            self.assertRaises(KeyboardInterrupt, self.tm, "mvds", self.place("disk.1"), source)
        self.assertEqual(("now", "kept"), (source.read_text(), (snapshots / "7").read_text()))
        self.tm("mvds", self.place("disk.1"), source)
        self.assertEqual(("now", "newer"), (source.read_text(), (snapshots / "7").read_text()))

    def test_one_snapshot_is_saved_as_an_image(self) -> None:
        source, target, disk = self.block(), self.block(), self.directory() / "disk.1"
        self.tm("clone", f"front-end:{source}", self.place("disk.1"))
        disk.write_text("then")
        self.tm("snap_create", self.place("disk.1"), 0)
        disk.write_text("now")
        self.tm("cpds", self.place("disk.1"), target, "raw", 0)
        self.assertEqual("then", target.read_text())
        self.assertFalse(Path(f"{target}.snap").exists())

    def test_volatile_disks(self) -> None:
        self.tm("mkimage", 4, "raw", self.place("disk.2"))
        disk = self.directory() / "disk.2"
        self.tm("resize", self.place("disk.2"), 16)
        blocks = subprocess.run(["dumpe2fs", "-h", disk], capture_output=True, text=True, check=True,
                                env=os.environ | {"PATH": f"{os.environ['PATH']}:/usr/sbin"}).stdout
        self.assertIn("Block count:              16384", blocks)
        self.refused("cannot become smaller", "resize", self.place("disk.2"), 8)
        self.refused("plain files", "mkimage", 4, "qcow2", self.place("disk.4"), kind=NotSupported)
        self.refused("1 MiB or more", "mkimage", 0, "raw", self.place("disk.4"))
        self.refused("no swap space", "mkswap", 1, self.place("disk.3"), kind=NotSupported)
        self.assertEqual(["disk.2"], self.left(self.directory()))
        self.tm("delete", self.place())
        self.assertFalse(self.directory().exists())
        self.tm("delete", self.place())

    def test_a_damaged_file_system_does_not_grow(self) -> None:
        self.tm("mkimage", 4, "raw", self.place("disk.2"))
        disk = self.directory() / "disk.2"
        with disk.open("rb+") as file:
            file.seek(0x400)
            file.write(bytes(56) + b"\x53\xef" + b"\xff" * 900)
        self.refused("cannot be checked", "resize", self.place("disk.2"), 8)
        self.assertEqual(4 << 20, disk.stat().st_size)

    @levels.exhaustive("a move that was interrupted stays")
    def test_a_vms_directory_moves(self) -> None:
        self.tm("mkimage", 1, "raw", self.place("disk.1"))
        (self.directory() / "disk.0").write_text("{}")
        before = (self.directory() / "disk.1").read_bytes()
        self.tm("mv", self.place("disk.1"), self.place("disk.1", "node2"))
        self.assertEqual(["disk.0", "disk.1"], self.left(self.directory()))
        self.tm("mv", self.place(), self.place("", "node2"))
        self.assertFalse(self.directory().exists())
        self.assertEqual(before, (self.directory("node2") / "disk.1").read_bytes())
        # To another datastore of the same host; and to where it is.
        there = f"node2:{self.base}/node2/5/1"
        self.tm("mv", self.place("", "node2"), there)
        self.tm("mv", there, there)
        self.assertEqual(["disk.0", "disk.1"], self.left(self.base / "node2/5/1"))
        self.refused("is not there", "mv", self.place("", "node2"), self.place())

    def test_a_shared_directory_stays(self) -> None:
        self.tm("mkimage", 1, "raw", self.place("disk.1"))
        self.tm("mv", self.place(), self.place().replace("node1:", "node2:"))
        self.assertEqual(["disk.1"], self.left(self.directory()))

    def test_a_shared_directory_stays_whatever_its_attributes_seem_to_be(self) -> None:
        """Network file systems cache them: a moment after a change two hosts are told different ones."""
        self.tm("mkimage", 1, "raw", self.place("disk.1"))
        (self.directory() / "disk.0").write_text("{}")
        before = (self.directory() / "disk.1").read_bytes()
        ssh = self.base / "bin/ssh"
        ssh.write_text(SSH.replace("case $2", f"touch {self.directory()} {self.directory().parent}\ncase $2", 1))
        for here, there in (("node1", "node2"), ("node2", "node1")):
            self.tm("mv", *(self.place().replace("node1:", f"{host}:") for host in (here, there)))
            self.assertEqual(["disk.0", "disk.1"], self.left(self.directory()))
        self.assertEqual(before, (self.directory() / "disk.1").read_bytes())
        self.assertEqual([".monitor", "1"], sorted(os.listdir(self.directory().parent)))

    @levels.exhaustive("a move that was interrupted stays")
    def test_a_directory_whose_copy_is_in_the_same_place_is_not_deleted(self) -> None:
        self.tm("mkimage", 1, "raw", self.place("disk.1"))
        before = (self.directory() / "disk.1").read_bytes()
        with mock.patch.object(actions, "is_shared", return_value=False):
            self.refused("are one directory", "mv", self.place(), self.place().replace("node1:", "node2:"))
        self.assertEqual(before, (self.directory() / "disk.1").read_bytes())
        self.assertEqual(([".monitor", "1"], ["disk.1"]), (sorted(os.listdir(self.directory().parent)),
                                                           sorted(os.listdir(self.directory()))))

    def test_a_move_that_was_interrupted_is_repeated(self) -> None:
        self.tm("mkimage", 1, "raw", self.place("disk.1"))
        before = (self.directory() / "disk.1").read_bytes()
        self.directory("node2").mkdir(parents=True)
        (self.directory("node2") / "disk.9").write_text("of the first try")
        self.tm("mv", self.place(), self.place("", "node2"))
        self.assertEqual((False, ["disk.1"]), (self.directory().exists(), self.left(self.directory("node2"))))
        self.assertEqual(before, (self.directory("node2") / "disk.1").read_bytes())

    def test_a_context_is_left_to_the_deployment(self) -> None:
        self.tm("context", "/var/lib/one/vms/1/context.sh", self.place("disk.3"))
        self.assertFalse(self.directory().exists())
        self.refused("not files", "context", "/x/context.sh", "/x/y:'start.sh'", self.place("disk.3"),
                     kind=NotSupported)

    def test_usage(self) -> None:
        self.tm("mkimage", 1, "raw", self.place("disk.1"))
        (self.directory() / "disk.1").write_bytes(b"x" * (2 << 20))
        self.tm("snap_create", self.place("disk.1"), 0)
        lines = ('DISK_SIZE=[ ID="1", SIZE="2" ]\nSNAPSHOT_SIZE=[ ID="0", DISK_ID="1", SIZE="2" ]')
        with mock.patch("sys.stdout") as out:
            self.assertEqual(0, main(["usage", str(self.directory().parent)]))
        self.assertIn(template.encoded({}, lines), "".join(call.args[0] for call in out.write.call_args_list))


class RefusalsTest(TransferTestCase):
    def test_a_host_that_does_not_answer(self) -> None:
        self.refused("node9 cannot be reached over ssh: ssh: Could not resolve", "mkimage", 1, "raw",
                     self.place("disk.1").replace("node1:", "node9:"))

    def test_a_node_without_the_driver(self) -> None:
        (self.base / "bin/onedock").unlink()
        self.useFixture(fixtures.EnvironmentVariable("PATH", f"{self.base}/bin:/usr/bin:/bin"))
        self.refused("onedock", "mkimage", 1, "raw", self.place("disk.1"))
        (self.base / "bin/onedock").write_text("#!/bin/sh\necho hello\n")
        (self.base / "bin/onedock").chmod(0o755)
        self.refused("instead of the answer to make", "mkimage", 1, "raw", self.place("disk.1"))

    def test_a_node_that_hangs_holds_no_action(self) -> None:
        self.useFixture(fixtures.MockPatchObject(pipes, "STALL_TIMEOUT", 0.3))
        source = self.block(16)
        with source.open("rb+") as file:
            file.write(os.urandom(8 << 20))
        command = self.base / "bin/onedock"
        command.write_text("#!/bin/sh\nexec sleep 20\n")
        disk = self.place("disk.1")
        for action, arguments in (("mkimage", (1, "raw", disk)), ("mvds", (disk, source)),
                                  ("clone", (f"front-end:{source}", disk))):
            self.refused("no data moved", action, *arguments)

    def test_a_node_that_takes_no_more_says_why(self) -> None:
        source = self.block(16)
        with source.open("rb+") as file:
            file.write(os.urandom(8 << 20))
        limit = "#!/bin/sh\nulimit -f 2048\ntrap '' XFSZ\n"  # a file may have 1 MiB
        command = self.base / "bin/onedock"
        command.write_text(command.read_text().replace("#!/bin/sh\n", limit))
        self.refused("disk.1 cannot be received: tar ended", "clone", f"front-end:{source}",
                     self.place("disk.1"))
        self.assertEqual([], self.left(self.directory()))
        self.assertEqual([], [path.name for path in self.directory().iterdir()])

    def test_a_disk_that_is_not_there(self) -> None:
        self.refused("cannot be read", "cpds", self.place(), f"{self.datastore}/{'0' * 32}.image", "raw", -1)
        for action, arguments in (("mvds", (self.place("disk.7"), self.block())), ("resize", (self.place("disk.7"), 3)),
                                  ("snap_create", (self.place("disk.7"), 0))):
            self.refused("disk.7", action, *arguments)

    def test_images_that_are_not_the_datastores(self) -> None:
        self.block()
        other = self.base / "other"
        other.mkdir()
        for source in (other / "passwd", other / "x.image", other / "x.raw", self.datastore / "none.raw",
                       f"{self.datastore}/../101/x"):
            self.refused("", "clone", f"front-end:{source}", self.place("disk.1"))
        self.assertEqual(([], []), (self.left(self.directory()), list(other.iterdir())))

    def test_backups_are_refused_with_what_to_do(self) -> None:
        arguments = (self.place(), "0:1:", "one-1", "-1")
        for action in ("prebackup", "prebackup_live"):
            self.refused("onevm disk-saveas", action, *arguments, kind=NotSupported)
        for action in ("postbackup", "postbackup_live"):
            self.tm(action, *arguments)

    def test_live_migration_is_the_nodes(self) -> None:
        for action in ("premigrate", "postmigrate", "failmigrate", "monitor"):
            self.tm(action, "node1", "node2", self.directory())

    def test_another_vms_disk(self) -> None:
        self.refused("of VM 2, not of VM 1", "delete", self.place(vm=2), kind=BadInput)

    def test_too_few_arguments_and_unknown_actions(self) -> None:
        for action in set(actions.ACTIONS):
            self.assertRaises(BadInput, actions.act, action, ["1", "101"])
        self.assertRaises(NotSupported, actions.act, "other", ["1", "101"])
        for vm, ds in (("x", "101"), ("1", "$(id)")):
            self.assertRaises(BadInput, actions.act, "delete", [self.place(), vm, ds])

    def test_metacharacters_in_every_argument(self) -> None:
        for text in METACHARACTERS:
            for action, arguments in (
                ("clone", (text, self.place("disk.1"))), ("ln", ("front-end:/x/y.raw", f"{text}:/x/0/1/disk.0")),
                ("mkimage", (text, "raw", self.place("disk.1"))), ("mkimage", (1, text or "?", self.place("disk.1"))),
                ("mkswap", (1, f"node1:/x/{text}/1/disk.0")), ("context", ("/x/context.sh", text)),
                ("mv", (text, self.place())), ("mvds", (self.place("disk.1"), text)), ("delete", (text,)),
                ("resize", (self.place("disk.1"), text)), ("snap_create", (self.place("disk.1"), text)),
            ):
                self.refused("", action, *arguments)
        self.assertEqual([], self.left(self.base / "node1") if (self.base / "node1").exists() else [])
