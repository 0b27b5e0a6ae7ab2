# SPDX-License-Identifier: Apache-2.0
"""Test what OpenNebula does with a VM's directory while the VM does not run, on two nodes."""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import fixtures

from containerhost.allocation.store import AllocationStore
from containerhost.engines.contract import Status
from lxdone.disk import stamps
from lxdone.root import root_state
from onedriver.node import vmlock
from tests import levels
from tests.functional import drivercontract
from tests.functional_one import diskfiles, writer
from tests.functional_one.node import DEAF, Node, SecondNode
from tests.functional_one.test_actions import (
    BOOT,
    BOOT_MIGRATED,
    BOOT_STOPPED,
    BOOT_UNDEPLOYED,
    CLEANUP,
    MIGRATE,
    POWEROFF,
    RESTORE,
    RESUME,
    STOP,
    SUSPEND,
    UNDEPLOY,
    ActionsCase,
)
from tests.functional_one.test_disks import volatile
from tests.functional_one.test_images import image, rbd
from tests.functional_one.vms import ROOT, Machine
from tests.waiting import TIMEOUT, await_that


class MovesCase(ActionsCase):
    shared = False

    def setUp(self) -> None:
        super().setUp()
        self.work = Path(self.useFixture(fixtures.TempDir()).path)
        self.first = self.node
        self.second = self.useFixture(SecondNode(self.node.datastores if self.shared else None))
        tree = diskfiles.tree(self.node.lxd.images["unified"], self.work)
        self.disk = diskfiles.ext4(tree, self.work / "ext4")
        self.addCleanup(self.nothing_is_used)

    def nothing_is_used(self) -> None:
        for node in (self.first, self.second):
            self.assertEqual([], diskfiles.loops(node.datastores) + diskfiles.loops(node.state))
            self.assertNotIn(str(node.state), Path("/proc/self/mounts").read_text())

    @contextlib.contextmanager
    def at(self, node: Node) -> Iterator[None]:
        """Run the calls made meanwhile on that node."""
        before = self.node
        self.node, self.engine = node, node.engine
        try:
            yield
        finally:
            self.node, self.engine = before, before.engine

    def booted(self, machine: Machine | None = None, disk: Path | None = None) -> Machine:
        machine = machine or Machine()
        self.node.give_disk(machine, disk or self.disk)
        self.ok("deploy", machine, lcm=BOOT)
        for node in (self.first, self.second):
            self.addCleanup(self.ended, node, machine)
        return machine

    def ended(self, node: Node, machine: Machine) -> None:
        with self.at(node):
            self.ok("cancel", machine, lcm=CLEANUP)

    def write(self, machine: Machine, text: str, place: str = "/root/file") -> None:
        self.assertEqual("", self.inside(machine, "sh", "-c", f"echo {text} > {place}; sync"))

    def read(self, machine: Machine, place: str = "/root/file") -> str:
        return self.inside(machine, "cat", place).strip()

    def directory(self, node: Node, machine: Machine) -> Path:
        return node.datastores / "0" / str(machine.id)

    def move(self, machine: Machine, source: Node, target: Node) -> None:
        """Move a VM's directory as the `ssh` transfer driver does with tar."""
        old, new = self.directory(source, machine), self.directory(target, machine)
        new.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "--archive", "--sparse=always", str(old), str(new)], check=True)
        shutil.rmtree(old)

    def is_gone(self, node: Node, machine: Machine) -> bool:
        """Nothing of it is on the node, after a round of monitoring and what that began."""
        told = node.probe("vm/status").out
        with vmlock.held(node.state, machine.id, TIMEOUT):
            return (machine.name not in told and not node.engine.exists(machine.name)
                    and not [*node.state.glob(machine.name), *node.state.glob(f"disks/{machine.name}")]
                    and machine.name not in {
                        record.consumer.container for record in AllocationStore(node.owners).records().values()})


@levels.exhaustive("each way to another node, an error and what must not be removed stay", tests=(
    "test_a_node_without_room_leaves_it_as_it_was", "test_a_root_that_outgrew_its_disk",
    "test_devices_stay_where_they_are",
    "test_nothing_is_left_of_a_vm_that_ended_after_its_container_was_removed", "test_off_and_moved",
    "test_suspended_and_moved_starts_anew_with_its_disks", "test_suspended_and_resumed_here_goes_on",
    "test_who_needs_its_devices_does_not_wait_for_monitoring", "test_killed_while_it_is_saved"))
class SshTest(MovesCase):
    def test_each_way_to_another_node(self) -> None:
        ways = (("save", STOP, "restore", BOOT_STOPPED), ("shutdown", UNDEPLOY, "deploy", BOOT_UNDEPLOYED),
                ("cancel", UNDEPLOY, "deploy", BOOT_UNDEPLOYED), ("save", MIGRATE, "restore", BOOT_MIGRATED),
                ("shutdown", MIGRATE, "deploy", BOOT_MIGRATED))
        machine = self.booted()
        here, there = self.first, self.second
        for number, (leave, leaving, come, coming) in enumerate(ways):
            with self.at(here):
                self.write(machine, str(number))
                self.ok(leave, machine, lcm=leaving)
                self.assertTrue(self.is_gone(here, machine))
                self.assertEqual(f"{number}\n", diskfiles.in_ext(self.directory(here, machine) / "disk.0", "root/file"))
            self.move(machine, here, there)
            with self.at(there):
                self.ok(come, machine, lcm=coming)
                self.assertEqual(str(number), self.read(machine))
            here, there = there, here

    def test_while_it_writes_with_devices(self) -> None:
        """Nothing that was written is lost, by either way to power it off, and each node gives it other devices."""
        machine = self.booted(Machine(disks=ROOT + volatile(16), devices=(self.gpus[0], self.vfs[0])))
        self.inside(machine, "sh", "-c", writer.BY_INIT)
        moves = ((self.first, self.second, "shutdown", 1), (self.second, self.first, "cancel", 0))
        for here, there, leave, number in moves:
            given = (self.gpus[number], self.vfs[number])
            with self.at(here):
                with writer.watched(writer.entered(self.pid(machine), writer.WATCH)) as notes:
                    await_that(lambda notes=notes: len(notes()) > 20, "it writes")
                    # Before it leaves, oned has written the devices of the other node into it.
                    machine = machine.changed(devices=given)
                    self.ok(leave, machine, lcm=MIGRATE)
                    seen = notes()
                self.assertTrue(self.is_gone(here, machine))
            self.move(machine, here, there)
            with self.at(there):
                self.ok("deploy", machine, lcm=BOOT_MIGRATED)
                self.assertEqual({device.id for device in given}, set(AllocationStore(there.owners).records()))
                self.assertEqual(f"/dev/nvidia{number}\n", self.inside(machine, "sh", "-c", drivercontract.NVIDIA))
                writer.checked(self.inside(machine, "sh", "-c", writer.READ), seen)

    def test_devices_stay_where_they_are(self) -> None:
        machine = self.booted(Machine(devices=(self.gpus[0],)))
        self.ok("save", machine, lcm=STOP)
        self.assertEqual({}, AllocationStore(self.node.owners).records())
        self.move(machine, self.first, self.second)
        with self.at(self.second):
            moved = machine.changed(devices=(self.gpus[1],))
            self.ok("restore", moved, lcm=BOOT_STOPPED)
            self.assertEqual("/dev/nvidia1", self.inside(moved, "sh", "-c", "ls -d /dev/nvidia[01]").strip())

    def test_off_and_moved(self) -> None:
        machine = self.booted(Machine(disks=ROOT + volatile(16), devices=(self.gpus[0],)))
        self.write(machine, "root")
        self.write(machine, "further", "/media/1/file")
        self.ok("shutdown", machine, lcm=POWEROFF)
        self.move(machine, self.first, self.second)
        with self.at(self.second):
            moved = machine.changed(devices=(self.gpus[1],))
            self.ok("deploy", moved, lcm=RESUME)
            self.assertEqual(("root", "further"), (self.read(moved), self.read(moved, "/media/1/file")))
        await_that(lambda: self.is_gone(self.first, machine), "the first node has nothing of it any more")

    def test_suspended_and_moved_starts_anew_with_its_disks(self) -> None:
        machine = Machine(disks=ROOT + volatile(16) + image(2, save=False))
        self.node.give_disk(machine, self.disk)
        (self.work / "content").mkdir()
        diskfiles.ext4(self.work / "content", self.work / "raw")
        diskfiles.qcow2("create", str(self.directory(self.first, machine) / "disk.2"), "32M")
        subprocess.run(["qemu-img", "convert", "-O", "qcow2", str(self.work / "raw"),
                        str(self.directory(self.first, machine) / "disk.2")], check=True)
        machine = self.booted(machine)
        for place in ("/root/file", "/media/1/file", "/media/2/file"):
            self.write(machine, place, place)
        for _ in range(2):
            self.ok("save", machine, lcm=SUSPEND)
        self.assertEqual(Status.FROZEN, self.status(machine))
        self.move(machine, self.first, self.second)
        with self.at(self.second):
            self.ok("restore", machine, lcm=RESTORE)
            self.assertEqual(["/root/file", "/media/1/file", "/media/2/file"], [
                self.read(machine, place) for place in ("/root/file", "/media/1/file", "/media/2/file")])
        await_that(lambda: self.is_gone(self.first, machine), "the first node has nothing of it any more")

    def test_suspended_and_resumed_here_goes_on(self) -> None:
        machine = self.booted(Machine(disks=ROOT + volatile(16)))
        before = self.pid(machine)
        for text in ("one", "two"):
            self.write(machine, text, "/media/1/file")
            self.write(machine, text)
            self.ok("save", machine, lcm=SUSPEND)
            self.assertEqual(f"{text}\n", diskfiles.in_ext(self.directory(self.first, machine) / "disk.0", "root/file"))
            self.assertEqual(f"{text}\n", diskfiles.in_ext(self.directory(self.first, machine) / "disk.1", "file"))
            self.assertIn('STATE="SUSPENDED"', self.node.probe("vm/status").out)
            self.ok("restore", machine, lcm=RESTORE)
        self.assertEqual(before, self.pid(machine))
        self.ok("save", machine, lcm=SUSPEND)
        os.utime(self.directory(self.first, machine) / "disk.0")  # it was reverted
        self.ok("restore", machine, lcm=RESTORE)
        self.assertNotEqual(before, self.pid(machine))
        self.assertEqual("two", self.read(machine))

    def test_ended_while_it_was_off_or_suspended(self) -> None:
        for action, lcm in (("shutdown", POWEROFF), ("save", SUSPEND)):
            machine = self.booted(Machine(disks=ROOT + volatile(16), devices=(self.gpus[0],)))
            self.ok(action, machine, lcm=lcm)
            shutil.rmtree(self.directory(self.first, machine))
            await_that(lambda machine=machine: self.is_gone(self.first, machine), "nothing of it is left")
            self.assertEqual([], self.engine.client.images())

    def test_who_needs_its_devices_does_not_wait_for_monitoring(self) -> None:
        machine = self.booted(Machine(devices=(self.gpus[0],)))
        self.ok("cancel", machine, lcm=POWEROFF)
        second = Machine(2, devices=(self.gpus[0],))
        self.node.give_disk(second)
        self.refused("lxd/one-1 (lxdone 1) holds", "deploy", second, lcm=BOOT)
        shutil.rmtree(self.directory(self.first, machine))
        self.booted(second)
        self.assertFalse(self.engine.exists("one-1"))

    def test_nothing_is_removed_without_certainty(self) -> None:
        machine, directory = self.booted(), self.directory(self.first, Machine())
        aside, mark = self.work / "aside", self.first.datastores / "0" / stamps.STORE
        shutil.move(directory, aside)
        self._stays(machine)  # it runs
        shutil.move(aside, directory)
        self.ok("cancel", machine, lcm=POWEROFF)
        shutil.move(directory, aside)
        identity = mark.read_text()
        mark.unlink()
        self._stays(machine)  # the datastore is not mounted
        for other in ("", f"{'0' * 32}\n"):
            mark.write_text(other)
            self._stays(machine)  # nor there, where another one was begun, or a VM while it was not mounted
        mark.write_text(identity)
        instance = self.engine.client.instance("one-1")[0]
        others = {key: text for key, text in instance["config"].items() if not key.startswith("user.")}
        self.engine.client.replace_instance("one-1", instance | {"config": others}, "")
        self._stays(machine)  # it is not of OpenNebula
        self.engine.client.replace_instance("one-1", instance, "")
        shutil.move(aside, directory)
        self.ok("deploy", machine, lcm=RESUME)
        self.engine.stop("one-1", timeout=20, force=True)
        shutil.move(directory, aside)
        self._stays(machine)  # its changes exist nowhere else
        shutil.move(aside, directory)

    def test_no_vm_leaves_whose_container_lxd_does_not_have_any_more(self) -> None:
        """With another project, or without its storage, LXD lists none, and what the VM wrote is still there."""
        machine = self.booted()
        self.engine.stop(machine.name, timeout=20, force=True)
        self.engine.delete(machine.name)
        self.refused("its data is not in the VM's disk", "cancel", machine, lcm=UNDEPLOY)
        self.refused("is no longer on this host", "deploy", machine, lcm=RESUME)
        self.ok("cancel", machine, lcm=CLEANUP)
        self.ok("deploy", machine, lcm=BOOT)  # of the same image, which goes with the container
        self.ok("cancel", machine, lcm=CLEANUP)

    def test_nothing_is_left_of_a_vm_that_ended_after_its_container_was_removed(self) -> None:
        machine = self.booted(Machine(disks=ROOT + volatile(16), devices=(self.gpus[0],)))
        self.engine.stop(machine.name, timeout=20, force=True)
        self.engine.delete(machine.name)
        directory, aside = self.directory(self.first, machine), self.work / "aside"
        self.assertEqual(0, self.node.command("lxdone reconcile").status)
        self.assertTrue((self.node.state / machine.name).exists())  # OpenNebula still has the VM
        shutil.move(directory, aside)
        mark = self.first.datastores / "0" / stamps.STORE
        identity = mark.read_text()
        mark.unlink()
        self.assertEqual(0, self.node.command("lxdone reconcile").status)
        self.assertTrue((self.node.state / machine.name).exists())  # the datastore is not mounted
        mark.write_text(identity)
        second = Machine(2, devices=(self.gpus[0],))
        self.booted(second)  # does not wait for monitoring
        await_that(lambda: self.is_gone(self.first, machine), "nothing of it is left")

    def _stays(self, machine: Machine) -> None:
        for _ in range(2):
            self.node.probe("vm/status")
            result = self.node.command("lxdone reconcile")
            self.assertEqual(0, result.status, result.err)
        self.assertTrue(self.engine.exists(machine.name))

    def test_a_node_without_room_leaves_it_as_it_was(self) -> None:
        place = self.work / "small"
        place.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m,mode=755", "none", str(place)], check=True)
        self.addCleanup(subprocess.run, ["umount", str(place)], check=True)
        client = self.first.engine.client
        client.finish(client.request("post", "storage-pools", asked="make a pool", json={
            "name": "small", "driver": "dir", "config": {"source": str(place)}}), "make a pool")
        self.addCleanup(client.request, "delete", "storage-pools", "small", asked="remove the pool")
        self.second._pool = "small"
        self.second.configure(f'project = "{self.second.project}"\n')
        machine = self.booted()
        self.inside(machine, "dd", "if=/dev/urandom", "of=/root/big", "bs=1M", "count=6")
        self.write(machine, "kept")
        self.ok("save", machine, lcm=MIGRATE)
        self.move(machine, self.first, self.second)
        before = (self.directory(self.second, machine) / "disk.0").read_bytes()
        with self.at(self.second):
            self.refused("space", "restore", machine, lcm=BOOT_MIGRATED)
            self.assertFalse(self.engine.exists(machine.name))
        self.assertEqual(before, (self.directory(self.second, machine) / "disk.0").read_bytes())
        self.move(machine, self.second, self.first)
        self.ok("restore", machine, lcm=BOOT_MIGRATED)
        self.assertEqual("kept", self.read(machine))

    def test_an_error_while_it_is_saved_leaves_disk_and_root_whole(self) -> None:
        machine = self.booted()
        file = self.directory(self.first, machine) / "disk.0"
        before = file.read_bytes()
        self.write(machine, "kept")
        for action, lcm in (("save", STOP), ("shutdown", UNDEPLOY), ("cancel", POWEROFF)):
            with self.node.stuck("tar", "cat > /dev/null; echo no room >&2; exit 1"):
                self.refused("no room", action, machine, lcm=lcm)
            self.assertEqual((before, Status.STOPPED), (file.read_bytes(), self.status(machine)))
            self.assertEqual({"disk.0", root_state.RUNNING}, set(os.listdir(file.parent)))
        with self.node.stuck("tar", "cat > /dev/null; echo no room >&2; exit 1"):
            self.assertIn('STATE="RUNNING"', self.node.probe("vm/status").out)
        self.ok("deploy", machine, lcm=RESUME)
        self.assertEqual("kept", self.read(machine))
        with self.node.stuck("tar", "cat > /dev/null; echo no room >&2; exit 1"):
            self.refused("no room", "save", machine, lcm=SUSPEND)
        self.assertEqual(("kept", Status.RUNNING), (self.read(machine), self.status(machine)))
        self.write(machine, "written on")

    @levels.exhaustive("a packer that fails in the same step is in the gate")
    def test_a_datastore_without_room(self) -> None:
        store = self.first.datastores / "0"
        store.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128m,mode=755", "none", str(store)], check=True)
        self.addCleanup(subprocess.run, ["umount", str(store)], check=True)
        machine = self.booted()
        before = (store / "1/disk.0").read_bytes()
        self.inside(machine, "dd", "if=/dev/urandom", "of=/root/big", "bs=1M", "count=24")
        self.write(machine, "kept")
        (store / "others").write_bytes(bytes(shutil.disk_usage(store).free - 8 * diskfiles.MIB))
        self.refused("cannot be written", "save", machine, lcm=MIGRATE)
        self.assertEqual((before, Status.STOPPED), ((store / "1/disk.0").read_bytes(), self.status(machine)))
        (store / "others").unlink()
        self.ok("save", machine, lcm=MIGRATE)
        self.ok("restore", machine, lcm=BOOT_MIGRATED)
        self.assertEqual("kept", self.read(machine))
        self.ok("cancel", machine, lcm=CLEANUP)

    def test_killed_while_it_is_saved(self) -> None:
        machine = self.booted()
        file = self.directory(self.first, machine) / "disk.0"
        before = file.read_bytes()
        self.write(machine, "kept")
        with self.node.stuck("tar", DEAF), self.node.begun(
                "save", machine, "/checkpoint", "node1", lcm=STOP) as process:
            await_that(lambda: diskfiles.loops(self.node.datastores), "the new file is mounted")
            os.killpg(process.pid, signal.SIGKILL)
        await_that(lambda: diskfiles.loops(self.node.datastores) == [], "the mount is gone")
        self.assertEqual((before, Status.STOPPED), (file.read_bytes(), self.status(machine)))
        self.ok("save", machine, lcm=STOP)
        self.assertEqual("kept\n", diskfiles.in_ext(file, "root/file"))
        self.assertEqual(["disk.0"], os.listdir(file.parent))
        self.ok("restore", machine, lcm=BOOT_STOPPED)
        with self.node.stuck("tar", DEAF), self.node.begun(
                "save", machine, "/checkpoint", "node1", lcm=SUSPEND) as process:
            await_that(lambda: diskfiles.loops(self.node.datastores), "the new file is mounted")
            os.killpg(process.pid, signal.SIGKILL)
        await_that(lambda: 'STATE="SUSPENDED"' in self.node.probe("vm/status").out, "the node saved it by itself")
        self.assertEqual("kept\n", diskfiles.in_ext(file, "root/file"))
        self.ok("restore", machine, lcm=RESTORE)
        self.assertEqual("kept", self.read(machine))

    @levels.exhaustive("PersistentTest has each format written back")
    def test_roots_of_every_format_come_back(self) -> None:
        qcow2 = self.work / "qcow2"
        subprocess.run(["qemu-img", "convert", "-O", "qcow2", str(self.disk), str(qcow2)], check=True)
        for disk in (self.node.lxd.images["unified"], self.node.lxd.images["squashfs"], qcow2,
                     diskfiles.partitioned(self.disk, self.work / "partitioned")):
            machine = self.booted(disk=disk)
            self.write(machine, disk.name)
            self.inside(machine, "chown", "12:34", "/root/file")
            self.ok("save", machine, lcm=MIGRATE)
            self.ok("restore", machine, lcm=BOOT_MIGRATED)
            self.assertEqual((disk.name, "12 34"), (self.read(machine),
                                                    self.inside(machine, "stat", "-c", "%u %g", "/root/file").strip()))
            self.ok("cancel", machine, lcm=CLEANUP)

    def test_a_root_that_outgrew_its_disk(self) -> None:
        machine = self.booted()
        self.inside(machine, "dd", "if=/dev/urandom", "of=/root/big", "bs=1M", "count=100")
        self.write(machine, "kept")
        self.ok("shutdown", machine, lcm=UNDEPLOY)
        self.assertEqual(256 * diskfiles.MIB, (self.directory(self.first, machine) / "disk.0").stat().st_size)
        self.ok("deploy", machine, lcm=BOOT_UNDEPLOYED)
        self.assertEqual(("kept", str(100 * diskfiles.MIB)), (
            self.read(machine), self.inside(machine, "stat", "-c", "%s", "/root/big").strip()))


@levels.exhaustive("SshTest has the same errors and kills",
                   tests=("test_an_error_or_a_kill_leaves_image_and_root_whole",))
class CephTest(MovesCase):
    """With a program in the place of ``rbd`` that maps images to files: a cluster is not here."""

    def setUp(self) -> None:
        super().setUp()
        self.pool = self.first.datastores / "pool"
        self.pool.mkdir(parents=True)

    def machine(self, save: bool) -> Machine:
        return Machine(disks=ROOT.replace("<SAVE><![CDATA[NO]]>", f"<SAVE>{'YES' if save else 'NO'}").replace(
            "<TYPE><![CDATA[FILE]]>", "<SOURCE>pool/one-5</SOURCE><CEPH_USER>libvirt</CEPH_USER><TYPE>RBD"))

    def test_roots_come_back(self) -> None:
        roots = ((False, "one-5-1-0"), (True, "one-5"))
        for save, name in levels.budget(gate=(levels.turn(roots),), exhaustive=roots):
            with self.node.stuck("rbd", rbd(self.node.datastores)):
                file = self.pool / name
                shutil.copy(self.disk, file)
                machine = self.booted(self.machine(save))
                self.write(machine, "kept")
                self.ok("save", machine, lcm=STOP)
                self.assertEqual("kept\n", diskfiles.in_ext(file, "root/file"))
                self.ok("restore", machine, lcm=BOOT_STOPPED)
                self.assertEqual("kept", self.read(machine))
                self.ok("cancel", machine, lcm=POWEROFF)
                self.ok("deploy", machine, lcm=RESUME)
                self.ok("cancel", machine, lcm=CLEANUP)
                self.assertEqual([name], os.listdir(self.pool))
                file.unlink()

    def test_an_error_or_a_kill_leaves_image_and_root_whole(self) -> None:
        file = self.pool / "one-5"
        shutil.copy(self.disk, file)
        before = file.read_bytes()
        with self.node.stuck("rbd", rbd(self.node.datastores)):
            machine = self.booted(self.machine(save=True))
            self.write(machine, "kept")
            with self.node.stuck("tar", "cat > /dev/null; echo no room >&2; exit 1"):
                self.refused("no room", "cancel", machine, lcm=POWEROFF)
            self.assertEqual((before, ["one-5"]), (file.read_bytes(), os.listdir(self.pool)))
            with self.node.stuck("tar", DEAF), self.node.begun("cancel", machine, lcm=POWEROFF) as process:
                await_that(lambda: diskfiles.loops(self.pool), "the image is mounted")
                os.killpg(process.pid, signal.SIGKILL)
            await_that(lambda: diskfiles.loops(self.pool) == [], "the mount is gone")
            self.assertEqual({"one-5", "one-5@lxdone-unfinished"}, set(os.listdir(self.pool)))
            self.ok("cancel", machine, lcm=POWEROFF)
            self.assertEqual(("kept\n", ["one-5"]), (diskfiles.in_ext(file, "root/file"), os.listdir(self.pool)))
            self.ok("cancel", machine, lcm=CLEANUP)


@levels.exhaustive("there and back stays, and what was changed under a root",
                   tests=("test_what_others_write_to_a_suspended_ones_image_stays",))
class SharedTest(MovesCase):
    shared = True

    def test_off_there_and_back_again(self) -> None:
        machine = self.booted()
        self.write(machine, "first")
        self.ok("cancel", machine, lcm=POWEROFF)
        with self.at(self.second):
            self.ok("deploy", machine, lcm=RESUME)
            self.assertEqual("first", self.read(machine))
            self.write(machine, "second")
            self.ok("cancel", machine, lcm=POWEROFF)
        self.ok("deploy", machine, lcm=RESUME)
        self.assertEqual("second", self.read(machine))
        await_that(lambda: self.is_gone(self.second, machine), "the second node has nothing of it any more")
        self.assertEqual(Status.RUNNING, self.status(machine))

    def test_what_others_write_to_a_suspended_ones_image_stays(self) -> None:
        """As another node would, which has a kernel of its own; here it is done by hand."""
        store = self.first.datastores / "1"
        store.mkdir(parents=True)
        (self.work / "content").mkdir()
        file = diskfiles.ext4(self.work / "content", store / "image")
        machine = Machine(disks=ROOT + image())
        self.directory(self.first, machine).mkdir(parents=True)
        (self.directory(self.first, machine) / "disk.1").symlink_to(file)
        machine = self.booted(machine)
        self.write(machine, "first", "/media/1/file")
        self.ok("save", machine, lcm=SUSPEND)
        (self.work / "new").write_text("second\n")
        for command in ("rm file", f"write {self.work / 'new'} file"):
            subprocess.run(["debugfs", "-w", "-R", command, str(file)], check=True, capture_output=True)
        (self.directory(self.first, machine) / root_state.RUNNING).write_text("node2\n")
        before = file.read_bytes()
        await_that(lambda: self.is_gone(self.first, machine), "the first node has nothing of it any more")
        self.assertEqual((before, "second\n"), (file.read_bytes(), diskfiles.in_ext(file, "file")))
        subprocess.run(["e2fsck", "-f", "-n", str(file)], check=True, capture_output=True)

    def test_what_a_node_has_not_saved_is_not_overlooked_elsewhere(self) -> None:
        machine = self.booted()
        self.write(machine, "first")
        self.engine.stop("one-1", timeout=20, force=True)
        with self.at(self.second):
            for action, lcm in (("deploy", RESUME), ("restore", BOOT_MIGRATED)):
                self.refused("has data that its disk lacks", action, machine, lcm=lcm)
            self.assertFalse(self.engine.exists("one-1"))
        self.ok("deploy", machine, lcm=RESUME)
        self.assertEqual("first", self.read(machine))

    def test_a_disk_that_was_changed_under_a_root_is_not_overwritten(self) -> None:
        machine = self.booted()
        self.write(machine, "first")
        file = self.directory(self.first, machine) / "disk.0"
        os.utime(file)
        before = file.read_bytes()
        self.refused("nothing is overwritten", "cancel", machine, lcm=POWEROFF)
        self.refused("nothing is overwritten", "deploy", machine, lcm=RESUME)
        self.assertEqual(before, file.read_bytes())
