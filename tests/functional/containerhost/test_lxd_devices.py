"""Devices in real containers, on emulated hardware: exactly what is granted, possession safe, everything given back."""

import os
import subprocess
import threading
from pathlib import Path

import fixtures
from testtools.matchers import Contains

from containerhost import errors
from containerhost.devices.model import Kind, Role
from containerhost.devices.scan import scan
from containerhost.engines import Status
from containerhost.grants import GrantOptions
from containerhost.netfunction import wait_for
from containerhost.owners import Owner, Owners
from containerhost.possession import Possession, Request
from containerhost.privileged import Privileged
from containerhost.rollback import Rollback
from tests.fakehost.control import FakeHostControl
from tests.functional.containerhost.base import LxdTestCase
from tests.functional.lxd import memlock

NODE_GUID, PORT_GUID = "0200:0000:0000:0001", "0200:0000:0000:0002"
ENXIO, EPERM = "No such device or address", "Operation not permitted"


class DeviceTestCase(LxdTestCase):
    def setUp(self):
        super().setUp()
        self.control = FakeHostControl.from_environment()
        self.owners = Owners(Path(self.useFixture(fixtures.TempDir()).path))
        self.possession = Possession(self.owners, scan, Privileged(), self.engine.held)
        devices = scan().devices
        self.gpus = [device for device in devices if device.kind is Kind.GPU]
        self.vfs = [device for device in devices if device.role is Role.VF]
        self.before = picture()
        self.addCleanup(self._everything_is_back)

    def _everything_is_back(self):
        """Runs before the fixture deletes containers, so it deletes them itself."""
        for container in self.engine.containers():
            self.engine.delete(container.name)
        for record in self.owners.records().values():
            self.assertEqual((), self.possession.give_back(record.owner))
        self.assertEqual(self.before, picture())

    def requests(self, number, **options):
        return (Request(self.gpus[number].id),
                Request(self.vfs[number].id, GrantOptions(netdev_name="ib0", memlock=memlock(), **options)))

    def acquired(self, name, requests):
        grants = self.possession.acquire(requests, owner(name))
        self.running(name, parts=grants)
        return grants


def owner(name):
    return Owner("test", "lxd", name, f"uuid-of-{name}")


def picture():
    """What a device must be again after it was given back."""
    return {device.id: (device.netdev, device.mac, device.rdma, device.nodes, device.health, device.host_use)
            for device in scan().devices}


class TestGrants(DeviceTestCase):
    def test_one_gpu_and_one_vf_and_no_others(self):
        grants = self.acquired("c1", self.requests(0))
        self.engine.verify("c1", grants)
        _, names = self.inside("c1", "sh", "-c", "cd /dev && find nvidia* dri infiniband -type c | sort")
        uverbs = next(node.path for node in self.vfs[0].nodes if "uverbs" in node.path).rpartition("/")[2]
        self.assertEqual(["dri/card0", "dri/renderD128", "infiniband/rdma_cm", f"infiniband/{uverbs}", "nvidia-modeset",
                          "nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidiactl"], names.split())
        self.assertThat(self.inside("c1", "cat", "/sys/class/net/ib0/type")[1], Contains("32"))
        # A node that is there and allowed leads to a driver that is not; one that is made up is refused.
        self.assertThat(self.inside("c1", "cat", "/dev/nvidia0")[1], Contains(ENXIO))
        self.assertThat(self.inside("c1", "mknod", "/tmp/nvidia1", "c", "195", "1")[1], Contains(EPERM))

    def test_two_containers_reach_each_other_over_their_vfs(self):
        for number, name in enumerate(("c1", "c2")):
            self.acquired(name, self.requests(number))
            self.inside(name, "ip", "address", "add", f"10.9.0.{number + 1}/24", "dev", "ib0")
            self.inside(name, "ip", "link", "set", "ib0", "up")
        self.assertEqual(0, self.inside("c1", "ping", "-c", "1", "-W", "5", "10.9.0.2")[0])

    def test_verify_sees_too_much_and_too_little(self):
        grants = self.acquired("c1", self.requests(0))
        error = self.assertRaises(errors.NotAsGranted, self.engine.verify, "c1", grants[:1])
        self.assertThat(str(error), Contains("uverbs"))
        self.inside("c1", "umount", "/dev/nvidia0")
        self.inside("c1", "rm", "/dev/nvidia0")
        error = self.assertRaises(errors.NotAsGranted, self.engine.verify, "c1", grants)
        self.assertThat(str(error), Contains("/dev/nvidia0 is missing"))

    def test_verify_follows_no_link_of_the_tenant(self):
        grants = self.acquired("c1", self.requests(0))
        self.inside("c1", "mv", "/dev/infiniband", "/dev/elsewhere")
        self.inside("c1", "ln", "-s", "/dev/infiniband", "/dev/infiniband")
        error = self.assertRaises(errors.NotAsGranted, self.engine.verify, "c1", grants)
        self.assertThat(str(error), Contains("rdma_cm is missing"))

    def test_soft_and_hard_reboot_keep_the_devices(self):
        grants = self.acquired("c1", self.requests(0))
        for force in (False, True):
            self.engine.restart("c1", timeout=20, force=force)
            self.engine.verify("c1", grants)

    def test_power_off_and_on_after_the_host_named_interfaces_anew(self):
        self.acquired("c1", self.requests(0))
        self.engine.stop("c1", timeout=10, force=True)
        Privileged().rename_netdev(self.vfs[0].netdev, "other0")
        # The kernel's /sys has the new name at once, the emulated one a moment later.
        self.assertTrue(wait_for(lambda: scan().get(self.vfs[0].id).netdev == "other0", 5))
        grants = self.possession.acquire(self.requests(0), owner("c1"))
        self.engine.refit("c1", grants)
        self.engine.start("c1")
        self.engine.verify("c1", grants)

    def test_attach_and_detach_while_it_runs(self):
        self.running("c1", limits={"memlock": memlock()})
        grants = self.possession.acquire(self.requests(0), owner("c1"))
        for grant in grants:
            self.engine.attach("c1", grant)
        self.engine.verify("c1", grants)
        gpu, vf = grants
        self.engine.detach("c1", vf, [gpu])
        self.assertEqual((), self.possession.give_back_one(vf.device.id, owner("c1")))
        self.engine.verify("c1", [gpu])
        self.engine.detach("c1", gpu, [])
        self.engine.verify("c1", [])

    def test_detach_of_one_of_two_leaves_the_other_whole(self):
        """LXD 5.0 takes nvidiactl away, or leaves it dangling, with either of two GPUs."""
        grants = self.possession.acquire([Request(gpu.id) for gpu in self.gpus[:2]], owner("c1"))
        self.running("c1", parts=grants)
        for gone, stays in ((0, 1), (1, 0)):
            self.engine.detach("c1", grants[gone], [grants[stays]])
            self.engine.verify("c1", [grants[stays]])
            self.engine.attach("c1", grants[gone])
            self.engine.verify("c1", grants)
        self.engine.detach("c1", grants[0], [grants[1]])
        self.engine.detach("c1", grants[1], [])
        self.engine.verify("c1", [])

    def test_hot_plugged_devices_come_back_from_every_end(self):
        for end in (lambda: self.engine.stop("c1", timeout=20),
                    lambda: self.engine.stop("c1", timeout=20, force=True),
                    lambda: self.engine.restart("c1", timeout=20),
                    lambda: self.engine.delete("c1")):
            self.running("c1", limits={"memlock": memlock()})
            grants = self.possession.acquire(self.requests(0), owner("c1"))
            for grant in grants:
                self.engine.attach("c1", grant)
            end()
            self.engine.delete("c1")
            self.assertEqual((), self.possession.give_back(owner("c1")))
            self.assertEqual(self.before, picture())

    def test_a_running_container_cannot_get_more_memlock(self):
        self.running("c1")
        grants = self.possession.acquire(self.requests(0), owner("c1"))
        error = self.assertRaises(errors.SpecError, self.engine.attach, "c1", grants[1])
        self.assertThat(str(error), Contains("memlock"))
        self.engine.verify("c1", [])


class TestPossession(DeviceTestCase):
    def test_guids_are_set_and_reset(self):
        vf = self.vfs[0]
        self.acquired("c1", self.requests(0, node_guid=NODE_GUID, port_guid=PORT_GUID))
        inside = scan().get(vf.id).rdma
        self.assertEqual((NODE_GUID, PORT_GUID), (inside.node_guid, inside.port_guid))
        self.engine.delete("c1")
        self.assertEqual((), self.possession.give_back(owner("c1")))
        self.assertEqual(vf.rdma, scan().get(vf.id).rdma)
        self.assertThat(self.control.resets(), Contains(vf.id))

    def test_acquiring_again_changes_nothing(self):
        requests = self.requests(0, node_guid=NODE_GUID, port_guid=PORT_GUID)
        first = self.acquired("c1", requests)
        self.assertEqual([grant.nodes for grant in first],
                         [grant.nodes for grant in self.possession.acquire(requests, owner("c1"))])
        self.assertEqual([grant.netdev for grant in first],
                         [grant.netdev for grant in self.possession.grants(requests, owner("c1"))])
        self.engine.delete("c1")
        self.assertEqual((), self.possession.give_back(owner("c1")))

    def test_what_cannot_be_had(self):
        self.possession.acquire(self.requests(0), owner("c1"))
        held, free = self.gpus[0].id, self.vfs[1].id
        for wanted, request in (
            (errors.DeviceHeld, Request(held)),
            (errors.DeviceNotFound, Request("0000:ff:00.0")),
            (errors.DeviceHeld, Request(self.vfs[0].parent)),
        ):
            self.assertRaises(wanted, self.possession.acquire, (Request(free), request), owner("c2"))
            self.assertEqual((), self.owners.held_by(owner("c2")))
        self.assertRaises(errors.SpecError, self.possession.acquire, (Request(free), Request(free)), owner("c2"))

    def test_an_unhealthy_device_is_refused(self):
        address = self.gpus[1].address
        self.control.set_fallen(address)
        self.addCleanup(self.control.set_fallen, address, False)
        error = self.assertRaises(errors.DeviceUnhealthy, self.possession.acquire, (Request(address),), owner("c1"))
        self.assertThat(str(error), Contains("fallen off the bus"))
        self.control.set_fallen(address, False)

    def test_a_vf_without_driver_is_refused(self):
        address = self.vfs[0].address
        self.control.unbind(address)
        self.addCleanup(self.control.bind, address)
        self.assertRaises(errors.DeviceUnhealthy, self.possession.acquire, (Request(address),), owner("c1"))
        self.assertEqual({}, self.owners.records())
        self.control.bind(address)

    def test_a_vf_whose_interface_is_elsewhere_is_refused(self):
        address = self.vfs[0].address
        self.control.move_abroad(address)
        try:
            error = self.assertRaises(errors.DeviceHeld, self.possession.acquire, (Request(address),), owner("c1"))
            self.assertThat(str(error), Contains("another network namespace"))
            self.assertEqual({}, self.owners.records())
        finally:
            self.control.bring_home(address)

    def test_what_anothers_container_uses_is_refused(self):
        gpu = self.gpus[0]
        self.engine.create(self.spec("someone"))
        self.engine.client.patch_instance("someone", {"devices": {"g": {"type": "gpu", "gputype": "physical"}}})
        error = self.assertRaises(errors.DeviceHeld, self.possession.acquire, (Request(gpu.id),), owner("c1"))
        self.assertThat(str(error), Contains("someone"))
        self.engine.delete("someone")

    def test_race_for_one_device_has_one_winner(self):
        barrier, results = threading.Barrier(4), {}

        def race(name):
            barrier.wait()
            try:
                self.possession.acquire(self.requests(0, node_guid=NODE_GUID, port_guid=PORT_GUID), owner(name))
                results[name] = "won"
            except errors.DeviceHeld:
                results[name] = "lost"

        threads = [threading.Thread(target=race, args=(f"c{number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(["lost", "lost", "lost", "won"], sorted(results.values()))
        (winner,) = {record.owner.container for record in self.owners.records().values()}
        self.assertEqual("won", results[winner])
        self.assertEqual(NODE_GUID, scan().get(self.vfs[0].id).rdma.node_guid)

    def test_an_acquisition_that_fails_half_way_gives_all_back(self):
        class Failing(Privileged):
            def bind(self, address, driver):
                super().bind(address, driver)
                if failing:
                    failing.clear()
                    raise errors.HostActionFailed("the emulated kernel said no")

        failing = [True]
        possession = Possession(self.owners, scan, Failing(), self.engine.held)
        self.assertRaises(errors.HostActionFailed, possession.acquire,
                          self.requests(0, node_guid=NODE_GUID, port_guid=PORT_GUID), owner("c1"))
        self.assertEqual({}, self.owners.records())
        self.assertEqual(self.before, picture())

    def test_a_start_that_fails_returns_the_vf_under_its_own_name(self):
        requests = self.requests(0)
        grants = self.possession.acquire(requests, owner("c1"))
        self.engine.create(self.spec("c1", parts=grants, limits={"memlock": str(1 << 60)}))
        with Rollback("test") as undo:
            undo.on_error("container", self.engine.delete, "c1")
            self.assertRaises(errors.EngineError, self.engine.start, "c1")
        self.engine.delete("c1")
        self.assertEqual((), self.possession.give_back(owner("c1")))
        self.assertEqual(self.before, picture())

    def test_a_device_that_vanished_is_blocked_until_it_is_back(self):
        gpu = self.gpus[0]
        self.acquired("c1", (Request(gpu.id),))
        self.control.remove(gpu.address)
        try:
            self.engine.delete("c1")
            (complaint,) = self.possession.give_back(owner("c1"))
            self.assertThat(complaint, Contains(gpu.id))
            self.assertIsNotNone(self.owners.records()[gpu.id].blocked)
        finally:
            self.control.restore(gpu.address)
        self.assertRaises(errors.DeviceHeld, self.possession.acquire, (Request(gpu.id),), owner("c2"))
        self.assertEqual((), self.possession.reconcile("test", "lxd", alive=()))
        self.assertEqual({}, self.owners.records())

    def test_reconcile_returns_only_what_the_dead_had(self):
        self.acquired("c1", self.requests(0))
        self.possession.acquire(self.requests(1), owner("c2"))
        self.assertEqual((), self.possession.reconcile("test", "docker", alive=()))
        self.assertEqual((), self.possession.reconcile("test", "lxd", alive=("c1",)))
        self.assertEqual({"c1"}, {record.owner.container for record in self.owners.records().values()})
        self.assertEqual(Status.RUNNING, self.engine.container("c1").status)
        self.assertRaises(AssertionError, self.assertEqual, self.before, picture())

    def test_give_back_while_the_container_still_has_it_blocks(self):
        self.acquired("c1", self.requests(0)[1:])
        self.useFixture(fixtures.MonkeyPatch("containerhost.netfunction.RETURN_LIMIT", 0.2))
        (complaint,) = self.possession.give_back(owner("c1"))
        self.assertThat(complaint, Contains("did not appear"))
        self.engine.delete("c1")
        self.assertEqual((), self.possession.give_back(owner("c1")))

    def test_a_gpu_that_a_process_of_a_container_still_has_open_is_not_free(self):
        """Of a container of any kind: here one made of namespaces only, with a terminal for the GPU's node."""
        ends = os.openpty()
        self.addCleanup(lambda: [os.close(end) for end in ends])
        terminal = os.fstat(ends[1]).st_rdev
        process = subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", "sleep", "60"], stdin=ends[1])
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        node = (os.major(terminal), os.minor(terminal))
        self.assertTrue(wait_for(lambda: Privileged().users([node]), 10))
        self.assertThat(Privileged().users([node])[0], Contains("sleep"))
