# SPDX-License-Identifier: Apache-2.0
"""Images as a VM's further disks: real file systems, mounted for containers of the real LXD."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import fixtures

from containerhost.engines.contract import Status
from containerhost.errors import DeviceInUse
from containerhost.linux.run import MEMORY
from containerhost.linux.storage import growth
from lxdone import backend, conf
from tests import levels
from tests.functional_one import diskfiles
from tests.functional_one.test_actions import BOOT, CLEANUP, POWEROFF, RESUME, SHUTDOWN, ActionsCase
from tests.functional_one.test_disks import MARK
from tests.functional_one.vms import ROOT, Machine
from tests.waiting import await_that


def image(number: int = 1, kind: str = "FILE", mark: str = "", save: bool = True, read_only: bool = False,
          source: str = "") -> str:
    return (f"<DISK>{mark}<DISK_ID>{number}</DISK_ID><READONLY>{'YES' if read_only else 'NO'}</READONLY>"
            f"<SAVE>{'YES' if save else 'NO'}</SAVE><SIZE>32</SIZE>"
            f"{f'<SOURCE>{source}</SOURCE>' if source else ''}<TARGET>sdb</TARGET><TYPE>{kind}</TYPE></DISK>")


PLACE = ("/var/lib/one//datastores/0/1/disk.1", "sdb", "1")


def rbd(directory: Path) -> str:
    """Return a script that does with files what ``rbd`` does with images: map, list, unmap, keep snapshots."""
    return f"""exec {sys.executable} - "$@" << 'END'
import json, pathlib, shutil, sys
directory = pathlib.Path({str(directory)!r})
state, words = directory / "mapped", sys.argv[1:]
entries = json.loads(state.read_text()) if state.exists() else []
if words[:1] == ["--id"]:
    assert words.pop(1) == "libvirt", words
    del words[0]
words = [word for word in words if word not in ("--read-only", "--no-progress")]
image, _, snapshot = words[-1].partition("@")
kept = directory / (image + "@" + snapshot)
if words[:2] == ["device", "list"]:
    print(json.dumps(entries))
elif words[:2] == ["device", "unmap"]:
    entries = [entry for entry in entries if entry["device"] != words[2]]
elif words[:2] == ["snap", "list"]:
    print(json.dumps([{{"name": file.name.partition("@")[2]}} for file in directory.glob(image + "@*")]))
elif words[:2] == ["snap", "create"]:
    assert not kept.exists()
    shutil.copy(directory / image, kept)
elif words[:2] == ["snap", "rollback"]:
    assert not [entry for entry in entries if entry["device"] == str(directory / image)]
    shutil.copy(kept, directory / image)
elif words[:2] == ["snap", "remove"]:
    kept.unlink()
else:
    assert words[:2] == ["device", "map"], words
    if not (directory / image).exists():
        sys.exit("rbd: error opening image")
    pool, name = image.split("/")
    entries.append({{"pool": pool, "name": name, "device": str(directory / image)}})
    print(entries[-1]["device"])
state.write_text(json.dumps(entries))
END"""


@levels.exhaustive("CephTest has images of Ceph; each kind, a restart and a lost container stay", tests=(
    "test_a_command_that_is_killed_is_repeated_or_taken_back", "test_a_copy_that_is_killed_is_made_anew",
    "test_what_was_written_stays_while_the_datastore_is_not_there",
    "test_what_was_written_stays_while_the_container_is_not_found", "test_one_in_use_stays"))
class ImagesTest(ActionsCase):
    def setUp(self) -> None:
        super().setUp()
        self.store, self.directory = self.node.datastores / "1", self.node.datastores / "0/1"
        self.store.mkdir(parents=True)
        self.directory.mkdir(parents=True)
        content = self.node.datastores / "content"
        content.mkdir()
        (content / "file").write_text("content\n")
        os.chown(content / "file", 12, 34)
        (content / "file").chmod(0o600)
        self.content = content
        self.addCleanup(self.nothing_mounted)

    def nothing_mounted(self) -> None:
        self.assertEqual([], diskfiles.loops(self.node.datastores) + diskfiles.loops(self.node.state))
        self.assertNotIn(str(self.node.state), Path("/proc/self/mounts").read_text())
        self.assertEqual([], list(self.node.state.glob("disks/*")))

    def persistent(self, number: int = 1) -> Path:
        """An image of a datastore, linked as the ``shared`` transfer driver does."""
        file = diskfiles.ext4(self.content, self.store / f"image{number}")
        (self.directory / f"disk.{number}").symlink_to(file)
        return file

    def in_file(self, file: Path, name: str) -> str:
        """Return a file of an unmounted file system."""
        return subprocess.run(["debugfs", "-R", f"cat {name}", str(file)], capture_output=True, text=True,
                              check=True).stdout

    def write(self, machine: Machine, text: str, number: int = 1) -> None:
        self.assertEqual("", self.inside(machine, "sh", "-c", f"echo {text} > /media/{number}/file"))

    def test_every_kind_from_the_start_to_the_end(self) -> None:
        raw = self.persistent()
        diskfiles.qcow2("create", "-b", str(diskfiles.ext4(self.content, self.store / "base")), "-F", "raw",
                        str(self.directory / "disk.2"))
        diskfiles.partitioned(diskfiles.ext4(self.content, self.store / "plain"), self.directory / "disk.3")
        diskfiles.iso(self.content, self.directory / "disk.4")
        machine = self.deployed(Machine(disks=ROOT + image() + image(2, save=False, source=str(self.store / "base"))
                                        + image(3, read_only=True)
                                        + image(4, "CDROM")))
        for number, owner in ((1, "12 34 600"), (2, "12 34 600"), (3, "12 34 600"), (4, "65534 65534 644")):
            self.assertEqual(f"content\n{owner}\n", self.inside(
                machine, "sh", "-c", f"cat /media/{number}/file; stat -c '%u %g %a' /media/{number}/file"))
        for number in (3, 4):
            self.assertIn("Read-only", self.inside(machine, "touch", f"/media/{number}/new"))
        self.assertEqual("", self.inside(machine, "sh", "-c", "ls /dev/loop* 2>/dev/null"))
        for number in (1, 2):
            self.write(machine, "written", number)
        self.ok("shutdown", machine, lcm=POWEROFF)
        self.nothing_mounted()
        self.assertEqual("written\n", self.in_file(raw, "file"))
        self.ok("deploy", machine, lcm=RESUME)
        self.assertEqual("written\n" * 2, self.inside(machine, "cat", "/media/1/file", "/media/2/file"))
        self.write(machine, "again")
        self.ok("cancel", machine, lcm=12)
        self.assertEqual("again\n", self.in_file(raw, "file"))

    def test_it_comes_and_goes_while_the_vm_runs(self) -> None:
        file = self.persistent()
        machine = self.deployed(Machine(devices=(self.gpus[0],)))
        more = machine.changed(disks=ROOT + image(mark=MARK))
        before, devices = self.pid(machine), self.devices()
        for text in ("one", "two"):
            for _ in range(2):
                self.ok("attach_disk", more, *PLACE, "message")
            self.assertEqual("12 34\n", self.inside(machine, "stat", "-c", "%u %g", "/media/1/file"))
            self.write(machine, text)
            self.ok("resize", more.changed(memory=256))
            self.ok("resize_disk", more, "1", "64", "message", "node1")
            self.assertEqual(f"{text}\n", self.inside(machine, "cat", "/media/1/file"))
            for _ in range(2):
                self.ok("detach_disk", more, *PLACE)
            self.assertIn("No such file", self.inside(machine, "cat", "/media/1/file"))
            self.nothing_mounted()
            self.assertEqual(f"{text}\n", self.in_file(file, "file"))
            self.assertEqual(64 * diskfiles.MIB, growth.ext_size(file))
        self.assertEqual(before, self.pid(machine))
        self.assertEqual(devices, self.devices())

    def devices(self) -> set[str]:
        return set(self.engine.client.instance("one-1")[0]["devices"])

    def test_one_in_use_stays(self) -> None:
        self.persistent()
        machine = self.deployed()
        more = machine.changed(disks=ROOT + image(mark=MARK))
        self.ok("attach_disk", more, *PLACE, "message")
        hold = "exec 3> /media/1/held; echo $$ > /root/held; exec sleep 600"
        with subprocess.Popen(["nsenter", "--target", str(self.pid(machine)), "--all", "sh", "-c", hold],
                              env={"PATH": "/bin:/usr/bin"}):
            await_that(lambda: self.inside(machine, "cat", "/root/held").strip().isdecimal(), "the file is open")
            self.refused("detach_disk: ", "detach_disk", more, *PLACE)
            self.assertEqual("content\n", self.inside(machine, "cat", "/media/1/file"))
            self.inside(machine, "sh", "-c", "kill -9 $(cat /root/held)")
        self.ok("detach_disk", more, *PLACE)
        self.nothing_mounted()

    def test_a_command_that_is_killed_is_repeated_or_taken_back(self) -> None:
        file = self.persistent()
        machine = self.deployed()
        more = machine.changed(disks=ROOT + image(mark=MARK))
        self.killed_when_mounted(more)
        self.ok("attach_disk", more, *PLACE, "message")
        self.assertEqual("content\n", self.inside(machine, "cat", "/media/1/file"))
        self.assertEqual([str(file)], diskfiles.loops(self.store))
        self.ok("detach_disk", more, *PLACE)
        self.nothing_mounted()
        self.killed_when_mounted(more)
        self.ok("cancel", machine, lcm=CLEANUP)

    def killed_when_mounted(self, machine: Machine) -> None:
        """End an attachment by force as soon as the disk is mounted, when LXD is about to hear of it."""
        point = self.node.state / "disks/one-1/1"
        with self.node.begun("attach_disk", machine, *PLACE, "message") as process:
            while process.poll() is None and not point.is_mount():
                pass
            os.killpg(process.pid, signal.SIGKILL)
        self.assertTrue(point.is_mount())

    def test_a_copy_that_is_killed_is_made_anew(self) -> None:
        machine = self.deployed()
        more = machine.changed(disks=ROOT + image(kind="CDROM", mark=MARK))
        diskfiles.iso(self.content, self.directory / "disk.1")
        with self.node.stuck("bsdtar"), self.node.begun("attach_disk", more, *PLACE, "message") as process:
            await_that((self.node.state / "disks/one-1/1").exists, "the copy is begun")
            os.killpg(process.pid, signal.SIGKILL)
        self.ok("attach_disk", more, *PLACE, "message")
        self.assertEqual("content\n", self.inside(machine, "cat", "/media/1/file"))

    def test_after_a_restart_of_the_node(self) -> None:
        raw = self.persistent()
        diskfiles.qcow2("create", "-b", str(diskfiles.ext4(self.content, self.store / "base")), "-F", "raw",
                        str(self.directory / "disk.2"))
        machine = self.deployed(Machine(disks=ROOT + image() + image(2, source=str(self.store / "base"))))
        for number in (1, 2):
            self.write(machine, "written", number)
        # The state after a reboot: containers are stopped, and nothing is mounted.
        self.engine.stop("one-1", timeout=20, force=True)
        for number in (1, 2):
            subprocess.run(["umount", str(self.node.state / f"disks/one-1/{number}")], check=True)
        self.ok("deploy", machine, lcm=RESUME)
        self.assertEqual("written\n" * 2, self.inside(machine, "cat", "/media/1/file", "/media/2/file"))
        self.ok("cancel", machine, lcm=POWEROFF)
        self.assertEqual("written\n", self.in_file(raw, "file"))

    def persistent_qcow2(self) -> Path:
        """An image of a datastore, of which the node has a raw copy while the VM runs."""
        raw, file = diskfiles.ext4(self.content, self.store / "raw"), self.store / "qcow2"
        subprocess.run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", str(raw), str(file)], check=True)
        (self.directory / "disk.1").symlink_to(file)
        return file

    def in_qcow2(self, file: Path, name: str) -> str:
        raw = self.store / "read"
        subprocess.run(["qemu-img", "convert", "-f", "qcow2", "-O", "raw", str(file), str(raw)], check=True)
        return self.in_file(raw, name)

    def test_what_was_written_stays_while_the_datastore_is_not_there(self) -> None:
        file = self.persistent_qcow2()
        machine = Machine(disks=ROOT + image())
        copy = self.node.state / "disks/one-1/1.raw"
        for number, words in ((1, "cannot be read: No such file"), (0, "Is the datastore mounted?")):
            self.deployed(machine)
            self.write(machine, f"written{number}")
            store = self.node.datastores / str(number)
            store.rename(store.with_name("away"))
            store.mkdir()  # where nothing is mounted
            for _ in range(2):
                self.refused(words, "shutdown", machine, lcm=SHUTDOWN)
            self.assertTrue(copy.exists())
            store.rmdir()
            store.with_name("away").rename(store)
            self.ok("shutdown", machine, lcm=SHUTDOWN)
            self.assertFalse(copy.exists())
            self.assertEqual(f"written{number}\n", self.in_qcow2(file, "file"))

    def test_what_was_written_stays_when_the_container_is_lost(self) -> None:
        file = self.persistent_qcow2()
        machine = self.deployed(Machine(disks=ROOT + image()))
        self.write(machine, "written")
        self.engine.stop(machine.name, timeout=20, force=True)
        self.engine.delete(machine.name)
        self.ok("deploy", machine, lcm=BOOT)
        self.assertEqual("written\n", self.inside(machine, "cat", "/media/1/file"))
        self.write(machine, "again")
        self.engine.stop(machine.name, timeout=20, force=True)
        self.engine.delete(machine.name)
        diskfiles.qcow2("create", str(file), "32M")  # a newer disk is not overwritten
        self.refused("no file system", "deploy", machine, lcm=BOOT)

    def test_what_was_written_stays_while_the_container_is_not_found(self) -> None:
        file = self.persistent_qcow2()
        machine = self.deployed(Machine(disks=ROOT + image()))
        self.write(machine, "written")
        client = self.engine.client
        client.request("post", "projects", asked="make the project", json={"name": "other"})
        self.addCleanup(client.request, "delete", "projects", "other", asked="remove the project")
        self.node.configure('project = "other"\n')
        for lcm, words in ((POWEROFF, "LXD has no container one-1"), (SHUTDOWN, "is still in use")):
            for _ in range(2):
                self.refused(words, "cancel", machine, lcm=lcm)
        self.node.configure()
        self.write(machine, "again")
        self.ok("cancel", machine, lcm=POWEROFF)
        self.assertEqual("again\n", self.in_qcow2(file, "file"))

    def test_disk_that_something_still_writes_to_is_not_written_back(self) -> None:
        self.persistent_qcow2()
        machine = self.deployed(Machine(disks=ROOT + image()))
        self.useFixture(fixtures.EnvironmentVariable("LXDONE_CONF", self.node.environment["LXDONE_CONF"]))
        disks = backend.disks_of(conf.load(), self.engine)
        point = self.node.state / "disks/one-1/1"
        subprocess.run(["umount", str(point)], check=True)
        for _ in range(2):
            self.assertRaises(DeviceInUse, disks.release, 1, 1)
        self.assertTrue(point.with_suffix(".raw").exists())
        self.ok("cancel", machine, lcm=POWEROFF)

    def test_what_no_container_can_see_changes_nothing(self) -> None:
        machine = self.deployed()
        disk = self.directory / "disk.1"
        good = diskfiles.ext4(self.content, self.store / "good")
        outside = diskfiles.ext4(self.content, self.node.state / "outside")
        host = self.store / "host"
        host.mkdir()
        writable, iso, cdrom = image(mark=MARK), image(mark=MARK), image(kind="CDROM", mark=MARK)
        for make, element, words in (
            (lambda: disk.write_bytes(bytes(4096)), writable, "no file system"),
            (lambda: disk.write_bytes(good.read_bytes()[:diskfiles.MIB]), writable, "cannot be checked"),
            (lambda: diskfiles.iso(self.content, disk), iso, "an ISO image, which cannot be written"),
            (lambda: disk.write_bytes(diskfiles.iso(self.content, self.store / "iso").read_bytes()[:36864]), cdrom,
             "cannot be"),
            (lambda: diskfiles.linked_iso(host, disk), cdrom, "cannot be unpacked"),
            (lambda: disk.symlink_to(outside), writable, "is not in a datastore"),
            (lambda: None, writable, "cannot be read"),
            (lambda: None, image(kind="swap", mark=MARK), "is swap space"),
            (lambda: None, image(kind="GLUSTER", mark=MARK), "of type GLUSTER"),
        ):
            disk.unlink(missing_ok=True)
            make()
            self.refused(words, "attach_disk", machine.changed(disks=ROOT + element), *PLACE, "message")
            self.assertEqual({"mount-context", "root"}, self.devices())
            self.nothing_mounted()
            self.assertEqual([], list(host.iterdir()))
        outside.unlink()
        self.assertEqual(Status.RUNNING, self.status(machine))

    def test_what_reads_a_tenants_image_takes_no_more_memory_than_it_may_need(self) -> None:
        directory = Path(self.useFixture(fixtures.TempDir()).path)
        directory.chmod(0o777)
        machine = self.deployed()
        disk = self.directory / "disk.1"
        diskfiles.qcow2("create", str(disk), "32M")
        with self.node.stuck("qemu-img", f"ulimit -v > {directory}/memory; exit 1"):
            self.refused("cannot be", "attach_disk", machine.changed(disks=ROOT + image(mark=MARK)), *PLACE, "message")
        self.assertEqual(f"{MEMORY >> 10}\n", (directory / "memory").read_text())
        disk.unlink()

    def test_images_of_ceph(self) -> None:
        """With a program in the place of ``rbd`` that maps images to files: a cluster is not here."""
        pool = self.node.datastores / "pool"
        pool.mkdir()
        unified = diskfiles.tree(self.node.lxd.images["unified"], self.store)
        diskfiles.ext4(unified, pool / "one-5-1-0")
        data = diskfiles.ext4(self.content, pool / "one-6")
        of_ceph = "<SOURCE>pool/{}</SOURCE><CEPH_USER>libvirt</CEPH_USER><TYPE>RBD"
        root = ROOT.replace("<TYPE><![CDATA[FILE]]>", of_ceph.format("one-5"))
        machine = Machine(disks=root)
        more = machine.changed(disks=root + image(mark=MARK).replace("<TYPE>FILE", of_ceph.format("one-6")))
        with self.node.stuck("rbd", rbd(self.node.datastores)):
            self.ok("deploy", machine, lcm=BOOT)
            self.addCleanup(self.ok, "cancel", machine, lcm=CLEANUP)
            for _ in range(2):
                self.ok("attach_disk", more, *PLACE, "message")
            self.assertEqual(["pool/one-6"], self.mapped())
            self.write(machine, "written")
            for _ in range(2):
                self.ok("detach_disk", more, *PLACE)
            self.assertEqual(("written\n", []), (self.in_file(data, "file"), self.mapped()))
            data.write_bytes(bytes(4096))
            self.refused("no file system", "attach_disk", more, *PLACE, "message")
            data.unlink()
            self.refused("cannot be mapped", "attach_disk", more, *PLACE, "message")
            self.assertEqual([], self.mapped())
        self.nothing_mounted()

    def mapped(self) -> list[str]:
        return [f"{entry['pool']}/{entry['name']}"
                for entry in json.loads((self.node.datastores / "mapped").read_text())]

    def test_limits_of_speed(self) -> None:
        self.persistent()
        slow = "<READ_BYTES_SEC>1048576</READ_BYTES_SEC><TOTAL_IOPS_SEC>{}</TOTAL_IOPS_SEC><TYPE>"
        limited = image().replace("<TYPE>", "<READ_BYTES_SEC>1048576</READ_BYTES_SEC><TYPE>")
        machine = self.deployed(Machine(disks=ROOT.replace("<TYPE>", "<WRITE_IOPS_SEC>500</WRITE_IOPS_SEC><TYPE>")
                                        + limited))
        self.assertEqual({"root": {"limits.write": "500iops"}, "disk-1": {"limits.read": "1048576"}}, {
            name: {key: text for key, text in device.items() if key.startswith("limits.")}
            for name, device in self.engine.client.instance("one-1")[0]["devices"].items() if name != "mount-context"})
        self.assertTrue(self.throttled())
        self.refused("not by both", "resize", machine.changed(disks=ROOT.replace("<TYPE>", slow.format(5))))

    def throttled(self) -> list[str]:
        """Return the throttle limits that the kernel enforces on groups of the container."""
        tables = Path("/sys/fs/cgroup/blkio").rglob("*one-1/**/blkio.throttle.*_device")
        return [f"{table}: {text}" for table in tables if (text := table.read_text())]

    def test_a_boot_that_fails_leaves_nothing(self) -> None:
        self.persistent()
        machine = Machine(disks=ROOT + image() + image(2))
        self.node.give_disk(machine)
        self.refused("disk.2 cannot be read", "deploy", machine, lcm=BOOT)
        self._nothing_is_left()
        self.nothing_mounted()
