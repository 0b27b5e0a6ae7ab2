# SPDX-License-Identifier: Apache-2.0
"""Test that a container has the devices that it was granted, and no others."""

import dataclasses
import os
import shutil
import stat
import subprocess
from pathlib import Path

import fixtures
from testtools.matchers import Contains

from containerhost import errors
from containerhost.allocation.refusals import Request
from containerhost.devices.grants import GpuGrant, Grant
from containerhost.devices.model import CharNode, Device
from containerhost.inventory.scan import scan
from containerhost.linux import charnodes, mountapi
from containerhost.linux.files import Directory, closing
from containerhost.linux.poll import wait_until
from containerhost.linux.process import namespaces
from containerhost.vendors import load
from containerhost.vendors.base import GpuVendor
from tests import levels
from tests.conformance.engine import frame
from tests.conformance.engine.frame import EACCES, ENODEV, ENXIO, EPERM, TIMEOUT
from tests.waiting import await_that


@levels.exhaustive(frame.REPEATED, when=frame.INCUS, tests=(
    "test_attach_and_detach_may_be_repeated", "test_vendor_with_nodes_in_a_directory_of_its_own",
    "test_two_containers_reach_each_other_over_their_vfs", "test_verify_sees_too_much_and_too_little",
    "test_verify_follows_no_link_of_the_tenant", "test_a_stopped_container_keeps_no_interface",
    "test_power_off_and_on_after_the_host_named_interfaces_anew", "test_no_path_opens_what_was_detached",
    "test_names_that_the_guest_gives_its_interface_hinder_no_detachment",
    "test_interface_that_the_guest_renamed_is_told_and_stays", "test_detach_of_one_of_two_leaves_the_other_whole",
    "test_what_anothers_container_uses_is_refused"))
class Devices(frame.DeviceFrame):
    def someones(self, gpu: Device) -> None:
        """Let a container ``someone``, not of this project's making, have the GPU."""
        raise NotImplementedError

    def test_held_names_the_container_of_each_device(self):
        grants = self.acquired("c1", self.requests())
        self.assertEqual({grant.device.id: "c1" for grant in grants}, dict(self.engine.held(scan().devices)))
        self.engine.delete("c1")
        self.assertEqual({}, dict(self.engine.held(scan().devices)))

    def test_attach_and_detach_may_be_repeated(self):
        gpu, vf = self.ready()
        for grant in (gpu, vf):
            for _ in range(2):
                self.engine.attach("c1", grant)
                self.engine.verify("c1", [grant])
            for _ in range(2):
                self.engine.detach("c1", grant)
                self.engine.verify("c1", [])

    def test_vendor_with_nodes_in_a_directory_of_its_own(self):
        directory = Path("/dev/testaccel")
        directory.mkdir()
        self.addCleanup(shutil.rmtree, directory)
        numbers = {"x0": (1, 7), "x1": (1, 5)}
        for name, number in numbers.items():
            os.mknod(directory / name, stat.S_IFCHR | 0o600, os.makedev(*number))
        other = type("Other", (GpuVendor,), {"name": "other", "nodes": ("testaccel/x*",)})
        known = load()
        self.useFixture(fixtures.MonkeyPatch("containerhost.vendors.load", lambda: (*known, other)))
        grants = []
        for name, number in numbers.items():
            card = dataclasses.replace(self.gpus[0], id=f"0000:{name}:00.0", plugin="other", vendor_id="1234")
            grants.append(Grant(card, (CharNode(f"/dev/testaccel/{name}", *number),),
                                gpu=GpuGrant()))
        self.running(parts=grants[:1])
        self.engine.verify("c1", grants[:1])
        self.engine.attach("c1", grants[1])
        self.engine.verify("c1", grants)
        error = self.assertRaises(errors.NotAsGranted, self.engine.verify, "c1", grants[1:])
        self.assertIn("/dev/testaccel/x0", str(error))
        for grant in grants:
            self.engine.detach("c1", grant)
        self.engine.verify("c1", ())

    def nodes(self, name: str) -> set[str]:
        return set(self.inside(name, "find", "/dev", "-type", "c")[1].split())

    def test_one_gpu_and_one_vf_and_no_others(self):
        self.running("plain")
        grants = self.acquired("c1", self.requests(0))
        self.engine.verify("c1", grants)
        granted = {node.path for grant in grants for node in grant.nodes}
        self.assertEqual(granted, self.nodes("c1") - self.nodes("plain"))
        _, names = self.inside("c1", "sh", "-c", "cd /dev && find nvidia* dri infiniband -type c | sort")
        uverbs = next(node.path for node in self.vfs[0].nodes if "uverbs" in node.path).rpartition("/")[2]
        self.assertEqual(["dri/card0", "dri/renderD128", "infiniband/rdma_cm", f"infiniband/{uverbs}", "nvidia-modeset",
                          "nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidiactl"], names.split())
        self.assertThat(self.inside("c1", "cat", "/sys/class/net/ib0/type")[1], Contains("32"))
        # A permitted node leads to a missing driver; any other node is refused.
        self.assertThat(self.inside("c1", "cat", "/dev/nvidia0")[1], Contains(ENXIO))
        self.assertThat(self.inside("c1", "sh", "-c", "mknod /nvidia1 c 195 1 && cat /nvidia1")[1], Contains(EPERM))

    def test_two_containers_reach_each_other_over_their_vfs(self):
        for number, name in enumerate(("c1", "c2")):
            self.acquired(name, self.requests(number))
            pid = str(self.engine.metrics(name).pid)
            for words in (["address", "add", f"10.9.0.{number + 1}/24", "dev", "ib0"], ["link", "set", "ib0", "up"]):
                subprocess.run(["nsenter", "--target", pid, "--net", "ip", *words], check=True)
        self.assertEqual(0, self.inside("c1", "ping", "-c", "1", "-W", "30", "10.9.0.2")[0])

    def test_verify_sees_too_much_and_too_little(self):
        grants = self.acquired("c1", self.requests(0))
        error = self.assertRaises(errors.NotAsGranted, self.engine.verify, "c1", grants[:1])
        self.assertThat(str(error), Contains("uverbs"))
        self.inside("c1", "sh", "-c", "umount /dev/nvidia0; rm /dev/nvidia0")
        error = self.assertRaises(errors.NotAsGranted, self.engine.verify, "c1", grants)
        self.assertThat(str(error), Contains("/dev/nvidia0 is missing"))

    def test_verify_follows_no_link_of_the_tenant(self):
        grants = self.acquired("c1", self.requests(0))
        self.inside("c1", "mv", "/dev/infiniband", "/dev/elsewhere")
        self.inside("c1", "ln", "-s", "/dev/infiniband", "/dev/infiniband")
        error = self.assertRaises(errors.NotAsGranted, self.engine.verify, "c1", grants)
        self.assertThat(str(error), Contains("rdma_cm is missing"))

    def test_every_start_gives_the_devices_again(self):
        grants = self.acquired("c1", self.requests(0))
        self.up()
        for force in (False, True):
            self.restart(force=force)
            self.engine.verify("c1", grants)

    def test_a_stopped_container_keeps_no_interface(self):
        self.acquired("c1", self.requests(0))
        self.engine.stop("c1", timeout=TIMEOUT, force=True)
        await_that(lambda: scan().get(self.vfs[0].id).netdev == self.vfs[0].netdev, "the interface is back")

    def test_power_off_and_on_after_the_host_named_interfaces_anew(self):
        self.acquired("c1", self.requests(0))
        self.engine.stop("c1", timeout=TIMEOUT, force=True)
        self.privileged().rename_netdev(self.vfs[0].netdev, "other0")
        # The kernel's /sys has the new name at once, the emulated one a moment later.
        self.assertTrue(wait_until(lambda: scan().get(self.vfs[0].id).netdev == "other0", TIMEOUT))
        grants = self.taken()
        self.engine.update_devices("c1", grants)
        self.engine.start("c1")
        self.engine.verify("c1", grants)

    def test_attach_and_detach_while_it_runs(self):
        gpu, vf = self.ready()
        for grant in (gpu, vf):
            self.engine.attach("c1", grant)
        self.engine.verify("c1", (gpu, vf))
        self.assertThat(self.inside("c1", "cat", "/dev/nvidia0")[1], Contains(ENXIO))
        self.restart(force=True)
        self.engine.verify("c1", (gpu, vf))
        self.engine.detach("c1", vf, [gpu])
        self.assertEqual((), self.allocator.release_device(vf.device.id, self.consumer(), self.engine.pid("c1")))
        self.engine.verify("c1", [gpu])
        self.engine.detach("c1", gpu, [])
        self.engine.verify("c1", [])
        self.restart(force=True)
        self.engine.verify("c1", [])

    def test_no_path_opens_what_was_detached(self):
        """A tenant keeps a node that the engine takes away by mounting it at a second place before."""
        gpus, (_, vf) = tuple(Request(gpu.id) for gpu in self.gpus[:2]), self.requests()
        requests = (*gpus, vf)
        for hot in (False, True):
            grants = self.allocator.acquire(requests, self.consumer())
            self.engine.create(self.spec(parts=grants))
            self.engine.update_devices("c1", () if hot else grants)
            self.engine.start("c1")
            self.up()
            for grant in grants if hot else ():
                self.engine.attach("c1", grant)
            self.engine.verify("c1", grants)
            kept = {node.path: self.kept(node.path) for grant in grants for node in grant.nodes}
            remaining = list(grants)
            for grant in grants:
                remaining.remove(grant)
                self.engine.detach("c1", grant, remaining)
                opens = {node.path for other in remaining for node in other.nodes}
                self.assertEqual({path: path in opens for path in kept},
                                 {path: self.opens(place) for path, place in kept.items()}, (hot, grant.device.id))
            for grant in grants:  # what was denied is permitted again, at the node of the engine's
                self.engine.attach("c1", grant)
            self.engine.verify("c1", grants)
            self.assertEqual(set(), {path for path in kept if not self.opens(path)})
            self.engine.delete("c1")
            self.assertEqual((), self.allocator.release(self.consumer()))

    def kept(self, path: str) -> str:
        """Mount a node of the container at a second place in it, as its tenant may."""
        place, pid = Path("/", f"kept{path.replace('/', '-')}"), self.engine.pid("c1")

        def act() -> None:
            namespaces.make_files_as(*root)
            place.touch()
            with Directory("/") as directory, closing(mountapi.shown_again(path)) as mount:
                mountapi.place(mount, place.name, directory.fd)

        root = charnodes.root_of(pid)
        namespaces.within(f"/proc/{pid}/ns/mnt", act)
        return str(place)

    def opens(self, path: str) -> bool:
        """Return whether the kernel lets the container open a node: no driver is behind an emulated one."""
        said = self.inside("c1", "cat", path)[1]
        self.assertTrue(any(each in said for each in (ENODEV, EPERM, EACCES)), said)
        return ENODEV in said

    def test_names_that_the_guest_gives_its_interface_hinder_no_detachment(self):
        _, grant = self.ready()
        for alternative in (self.vfs[0].netdev, self.vfs[1].netdev, "lo"):
            self.engine.attach("c1", grant)
            subprocess.run(["nsenter", "--target", str(self.engine.pid("c1")), "--net", "ip", "link", "property", "add",
                            "dev", "ib0", "altname", alternative], check=alternative != "lo")
            self.engine.detach("c1", grant)
            self.assertNotIn("ib0", self.privileged().inside(self.engine.pid("c1")).netdevs)
            await_that(lambda: scan().get(self.vfs[0].id).netdev == self.vfs[0].netdev, "the interface is back")

    def test_interface_that_the_guest_renamed_is_told_and_stays(self):
        _, grant = self.ready()
        self.engine.attach("c1", grant)

        def rename(name, new):
            pid = str(self.engine.metrics("c1").pid)
            for words in (["down"], ["name", new]):
                subprocess.run(["nsenter", "--target", pid, "--net", "ip", "link", "set", name, *words], check=True)

        rename("ib0", "mine")
        error = self.assertRaises(errors.HostActionFailed, self.engine.detach, "c1", grant)
        self.assertIn("call it ib0 again, or stop the container, then try again", str(error))
        self.assertIn("mine", self.privileged().inside(self.engine.metrics("c1").pid).netdevs)
        rename("mine", "ib0")
        self.engine.detach("c1", grant)
        self.assertNotIn("ib0", self.privileged().inside(self.engine.metrics("c1").pid).netdevs)

    def test_detach_of_one_of_two_leaves_the_other_whole(self):
        """LXD 5.0 takes nvidiactl away, or leaves it dangling, with either of two GPUs."""
        grants = self.acquired("c1", tuple(Request(gpu.id) for gpu in self.gpus[:2]))
        for gone, stays in ((0, 1), (1, 0)):
            self.engine.detach("c1", grants[gone], [grants[stays]])
            self.engine.verify("c1", [grants[stays]])
            self.engine.attach("c1", grants[gone])
            self.engine.verify("c1", grants)
        self.engine.detach("c1", grants[0], [grants[1]])
        self.engine.detach("c1", grants[1], [])
        self.engine.verify("c1", [])

    def test_hot_plugged_devices_come_back_from_every_end(self):
        for end in (lambda: self.engine.stop("c1", timeout=TIMEOUT),
                    lambda: self.engine.stop("c1", timeout=TIMEOUT, force=True),
                    self.restart,
                    lambda: self.engine.delete("c1")):
            for grant in self.ready():
                self.engine.attach("c1", grant)
            end()
            self.engine.delete("c1")
            self.assertEqual((), self.allocator.release(self.consumer()))
            self.all_back()

    def test_what_anothers_container_uses_is_refused(self):
        self.someones(self.gpus[0])
        error = self.assertRaises(errors.DeviceHeld, self.taken)
        self.assertThat(str(error), Contains("someone"))
        self.assertEqual({}, self.store.records())
