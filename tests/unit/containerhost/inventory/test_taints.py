# SPDX-License-Identifier: Apache-2.0
"""Taints, tolerations and draining on an emulated host."""

import json
import os
import shutil
import threading
from collections.abc import Collection

import fixtures
import testtools
from click.testing import CliRunner, Result

from containerhost.allocation import faults
from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.drain import holders
from containerhost.allocation.refusals import Request
from containerhost.allocation.store import AllocationStore
from containerhost.devices.model import Device
from containerhost.errors import DeviceHeld, DeviceUnhealthy, HostActionFailed, SpecError
from containerhost.inventory.scan import HostView, scan
from containerhost.inventory.taints import FILE, TaintFile
from containerhost.operator.cli import main
from nova_lxd_ext.hardware import pci
from onedriver.node import probes
from onedriver.node.pcifilter import PciFilter
from tests.unit.containerhost.allocation.allocatorcase import Marking, consumer
from tests.unit.containerhost.hosts import Broken

GPU, OTHER, CUT, SLICE = "0000:3b:00.0", "0000:83:00.0", "0000:3c:00.0", "0000:3c:00.0/gi1/ci0"
CARD, VF = "0000:5e:00.0", "0000:5e:00.1"


class TaintCase(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.tree = self.useFixture(Broken("mixed"))
        self.host = self.tree.host
        self.store = AllocationStore(self.tree.root / "var/lib/containerhost/owners")
        self.allocator = DeviceAllocator(self.store, lambda: HostView(self.host), Marking(self.tree), host=self.host)

    def run_command(self, *arguments: str, status: int = 0) -> Result:
        done = CliRunner().invoke(main, [*arguments, "--root", str(self.tree.root)])
        self.assertEqual(status, done.exit_code, done.output)
        return done

    def device(self, name: str) -> Device:
        return scan(self.host).get(name)

    def sick(self) -> set[str]:
        return {device.id for device in scan(self.host).devices if not device.healthy}


class Taints(TaintCase):
    def test_tainted_device_is_given_to_nobody_new(self) -> None:
        self.run_command("taint", GPU, "--reason", "fan is loud")
        self.assertEqual({GPU}, self.sick())
        error = self.assertRaises(DeviceUnhealthy, self.allocator.acquire, [Request(GPU)], consumer("one"))
        self.assertIn("tainted by the operator: fan is loud", str(error))
        self.assertNotIn(f'ADDRESS="{GPU[5:]}"', "\n".join(probes.pci(scan(self.host), (), (), PciFilter())))
        self.run_command("untaint", GPU)
        self.assertEqual(set(), self.sick())
        self.allocator.acquire([Request(GPU)], consumer("one"))

    def test_device_that_another_prepares_is_held_and_not_unhealthy(self) -> None:
        """Preparing unbinds its driver for a moment, which a scan tells as out of order."""
        self.store.claim([self.device(GPU)], consumer("one"), lambda device: ())
        self.run_command("taint", GPU, "--reason", "as out of order as any")
        self.assertRaises(DeviceHeld, self.allocator.acquire, [Request(GPU)], consumer("two"))
        self.store.attach([GPU], consumer("one"))
        self.assertRaises(DeviceUnhealthy, self.allocator.acquire, [Request(GPU)], consumer("two"))

    def test_holder_keeps_it_is_told_and_gives_it_back_clean(self) -> None:
        self.allocator.acquire([Request(GPU)], consumer("one"))
        self.run_command("taint", GPU, "--reason", "fan is loud")
        self.allocator.acquire([Request(GPU)], consumer("one"))  # its restart
        self.assertEqual((f"{GPU}: tainted by the operator: fan is loud",),
                         faults.of(self.store.records().values(), scan(self.host)))
        self.assertEqual((), self.allocator.repair.reset_devices(consumer("one")))
        self.assertEqual((), self.allocator.release(consumer("one")))
        self.assertEqual({}, self.store.records())

    def test_parts_are_tainted_with_their_whole(self) -> None:
        self.run_command("taint", CUT, "--reason", "x")
        self.assertEqual({device.id for device in scan(self.host).devices if device.address == CUT}, self.sick())
        self.run_command("untaint", CUT)
        self.run_command("taint", CARD, "--reason", "x")
        self.assertEqual({device.id for device in scan(self.host).devices if CARD in (device.id, device.parent)},
                         self.sick())
        self.run_command("untaint", CARD)
        self.run_command("taint", SLICE, "--reason", "x")
        self.assertEqual({SLICE}, self.sick())

    def test_shares_are_tainted_with_their_gpu(self) -> None:
        self.tree.write("/etc/containerhost/sharing.yaml", f"{GPU}: {{containers: 2}}\n")
        self.run_command("taint", GPU, "--reason", "x")
        self.assertEqual({GPU, f"{GPU}/share0", f"{GPU}/share1"}, self.sick())

    def test_single_device_that_is_read_anew_is_tainted_too(self) -> None:
        view = HostView(self.host)
        self.assertTrue(view.inventory.get(VF).healthy)
        TaintFile(self.host).taint(CARD, "x")
        self.assertEqual("x", view.refresh([VF]).get(VF).taint)

    def test_bad_reasons_change_nothing(self) -> None:
        for reason in ("", "  ", "two\nlines", "x" * 201, "\x1b[2J"):
            self.assertRaises(SpecError, TaintFile(self.host).taint, GPU, reason)
        self.assertFalse(self.host.exists(FILE))

    def test_unknown_device_changes_nothing(self) -> None:
        self.run_command("taint", "0000:99:00.0", "--reason", "x", status=1)
        self.assertFalse(self.host.exists(FILE))

    def test_untaint_of_what_is_not_tainted(self) -> None:
        self.assertIn(f"{GPU} is not tainted", self.run_command("untaint", GPU).output)
        refused = self.run_command("untaint", "0000:99:00.0", status=1)
        self.assertIn("this host has no device 0000:99:00.0", refused.output)

    def test_tainted_device_that_left_the_host_is_untainted(self) -> None:
        self.run_command("taint", GPU, "--reason", "fan is loud")
        self.tree.path(f"/sys/bus/pci/devices/{GPU}").unlink()
        self.assertIn("no longer tainted", self.run_command("untaint", GPU).output)

    def test_short_address_is_told_the_whole_one(self) -> None:
        self.assertIn(f"begin with their domain: {GPU}", self.run_command("taint", "3b:00.0", "--reason", "x", status=1
                                                                          ).output)

    def test_file_that_is_not_understood_gives_nothing_away(self) -> None:
        for content in ("{", "[]", '{"devices": []}', '{"devices": {"0000:3b:00.0": {"reason": 3}}}', "[" * 9999,
                        '{"devices": {"0000:3b:00.0": {"reason": 3, "tolerated": [], "since": ""}}}'):
            self.tree.write(FILE, content)
            devices = scan(self.host).devices
            self.assertEqual([], [device.id for device in devices if device.healthy], content)
            self.assertTrue(all(device.sound for device in devices), content)
            self.assertRaises(HostActionFailed, TaintFile(self.host).taint, GPU, "x")

    def test_taints_at_once_are_all_kept(self) -> None:
        threads = [threading.Thread(target=TaintFile(self.host).taint, args=(f"0000:{number:02x}:00.0", "x"))
                   for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(20, len(json.loads(self.tree.path(FILE).read_text())["devices"]))


class Tolerations(TaintCase):
    def test_tolerated_complaint_is_a_note_and_a_new_one_is_not(self) -> None:
        self.tree.path("/dev/nvidia0").unlink()
        (complaint,) = self.device(GPU).health
        self.assertIn(complaint, self.run_command("tolerate", GPU).output)
        self.assertEqual(((), (f"tolerated: {complaint}",)), (self.device(GPU).health, self.device(GPU).notes))
        self.tree.path("/dev/dri/card0").unlink()
        (new,) = self.device(GPU).health
        self.assertIn("/dev/dri/card0", new)
        self.run_command("untaint", GPU)
        self.assertEqual({complaint, new}, set(self.device(GPU).health))

    def test_taint_is_not_tolerated(self) -> None:
        self.run_command("taint", GPU, "--reason", "x")
        refused = self.run_command("tolerate", GPU, status=1)
        self.assertIn("is outside it, and is not tolerated: tainted", refused.output)
        self.assertEqual({GPU}, self.sick())

    def test_taint_and_toleration_are_kept_beside_each_other(self) -> None:
        self.tree.path("/dev/nvidia0").unlink()
        self.run_command("tolerate", GPU)
        self.run_command("taint", GPU, "--reason", "x")
        self.assertEqual(("tainted by the operator: x",), self.device(GPU).health)


class UndividedGpu(TaintCase):
    """A GPU that is divided in another way while a container has a part of it."""

    def hold(self) -> None:
        self.tree.write("/etc/containerhost/sharing.yaml", f"{GPU}: {{containers: 2}}\n")
        self.allocator.acquire([Request(f"{GPU}/share0"), Request(SLICE)], consumer("one"))
        self.tree.path("/etc/containerhost/sharing.yaml").unlink()
        shutil.rmtree(self.tree.path("/proc/driver/nvidia/capabilities/gpu1/mig"))
        self.assertEqual({GPU, CUT}, {device.id for device in scan(self.host).devices if device.address in (GPU, CUT)})

    def test_parts_that_are_no_more_are_free_when_their_container_has_ended(self) -> None:
        self.hold()
        self.assertRaises(DeviceHeld, self.allocator.acquire, [Request(GPU)], consumer("two"))
        self.assertEqual(((), {}), (self.allocator.release(consumer("one")), self.store.records()))
        self.allocator.acquire([Request(GPU), Request(CUT)], consumer("two"))

    def test_parts_that_are_no_more_are_blocked_while_their_container_runs(self) -> None:
        self.hold()
        for name in (f"{GPU}/share0", SLICE):
            (complaint,) = self.allocator.release_device(name, consumer("one"), os.getpid())
            self.assertIn("this host has no device", complaint)
        self.assertRaises(DeviceHeld, self.allocator.acquire, [Request(GPU)], consumer("two"))
        self.assertEqual(((), {}), (self.allocator.release(consumer("one")), self.store.records()))

    def test_part_that_is_not_read_once_is_cleaned(self) -> None:
        root = Marking(self.tree)
        root.using = ("process 7",)
        allocator = DeviceAllocator(self.store, lambda: HostView(self.host), root, host=self.host)
        allocator.acquire([Request(SLICE)], consumer("one"))
        answers = iter([()])
        names = self.host.names
        self.useFixture(fixtures.MockPatchObject(self.host, "names", lambda path: (
            next(answers, names(path)) if path.endswith("/gpu1/mig") else names(path))))
        (complaint,) = allocator.release(consumer("one"))
        self.assertIn("in use by process 7", complaint)
        self.assertEqual([SLICE], list(self.store.records()))

    def test_gpu_is_offered_by_no_cloud_while_a_part_is_held(self) -> None:
        self.assertLessEqual({GPU, OTHER}, self.offered(()))
        self.hold()
        records = self.store.records()
        self.assertLessEqual({OTHER}, self.offered(records))
        self.assertEqual(set(), {GPU, CUT} & self.offered(records))
        told = {entry["address"] for entry in pci.passthrough(scan(self.host), records)}
        self.assertEqual({OTHER}, {GPU, CUT, OTHER} & told)

    def offered(self, records: Collection[str]) -> set[str]:
        """Return what OpenNebula is told of a host where its VMs, or other consumers, have these devices."""
        inventory = scan(self.host)
        return {device.id for device in inventory.devices for own, others in ((records, ()), ((), records))
                if f'SHORT_ADDRESS="{device.id[5:]}"' in "\n".join(probes.pci(inventory, own, others, PciFilter()))}

    def test_parts_of_a_gpu_that_has_no_driver_stay_blocked(self) -> None:
        """It tells of no slice then, and may still be divided as before."""
        self.hold()
        self.tree.path(f"/sys/bus/pci/devices/{CUT}/driver").unlink()
        (complaint,) = self.allocator.release(consumer("one"))
        self.assertIn(f"this host has no device {SLICE}", complaint)
        self.assertEqual([SLICE], list(self.store.records()))

    def test_parts_of_a_gpu_that_left_stay_blocked(self) -> None:
        self.hold()
        self.tree.path(f"/sys/bus/pci/devices/{GPU}").unlink()
        (complaint,) = self.allocator.release(consumer("one"))
        self.assertIn(f"this host has no device {GPU}/share0", complaint)


class Draining(TaintCase):
    def test_free_device_is_drained_at_once(self) -> None:
        self.assertIn("is drained", self.run_command("drain", GPU, "--reason", "x", "--timeout", "0").output)
        self.assertEqual({GPU}, self.sick())

    def test_holders_are_named_when_the_time_is_over_and_the_taint_stays(self) -> None:
        self.allocator.acquire([Request(VF)], consumer("one"))
        told = self.run_command("drain", CARD, "--reason", "x", "--timeout", "0", status=1).output
        self.assertIn(f"lxd/one (test uuid-of-one) has {VF}", told)
        self.assertIsNotNone(self.device(CARD).taint)
        self.assertEqual({VF}, self.store.records().keys())

    def test_drained_when_the_last_holder_has_left(self) -> None:
        self.allocator.acquire([Request(SLICE)], consumer("one"))
        leaving = threading.Timer(0.5, self.allocator.release, [consumer("one")])
        leaving.start()
        self.run_command("drain", CUT, "--reason", "x", "--timeout", "60")
        leaving.join()
        self.assertEqual({}, self.store.records())

    def test_running_container_that_may_still_use_a_blocked_device_is_its_holder(self) -> None:
        self.allocator.acquire([Request(GPU)], consumer("one"))
        self.allocator._privileged.able = False
        (complaint,) = self.allocator.release_device(GPU, consumer("one"), os.getpid())
        self.assertIn("may still be in use by lxd/one", complaint)
        told = self.run_command("drain", GPU, "--reason", "x", "--timeout", "0", status=1).output
        self.assertIn(f"lxd/one (test uuid-of-one) has {GPU}", told)

    def test_blocked_device_and_neighbours_have_no_holder(self) -> None:
        for name, who in ((SLICE, "one"), ("0000:3c:00.0/gi2/ci0", "two")):
            self.allocator.acquire([Request(name)], consumer(who))
        self.store.block(SLICE, "not clean")
        inventory, records = scan(self.host), self.store.records()
        self.assertEqual({}, holders(records, inventory.get(SLICE), inventory))
        self.assertEqual({"0000:3c:00.0/gi2/ci0"}, holders(records, inventory.get(CUT), inventory).keys())
