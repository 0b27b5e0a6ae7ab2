"""Devices in real containers on Docker, on emulated hardware: exactly what is granted, and everything given back."""

import subprocess
from pathlib import Path

import fixtures
from testtools.matchers import Contains

from containerhost import errors
from containerhost.devices.model import Kind, Role
from containerhost.devices.scan import scan
from containerhost.engines import Status
from containerhost.engines.docker.privileged import DockerPrivileged
from containerhost.grants import GrantOptions
from containerhost.netfunction import wait_for
from containerhost.owners import Owner, Owners
from containerhost.possession import Possession, Request
from containerhost.spec import Nic
from tests.functional.lxd import memlock
from tests.functional_docker.base import DockerTestCase
from tests.functional_docker.dockerd import leftovers
from tests.waiting import await_that

ENXIO, EPERM = "No such device or address", "Operation not permitted"


class DeviceTestCase(DockerTestCase):
    def setUp(self):
        super().setUp()
        self.owners = Owners(Path(self.useFixture(fixtures.TempDir()).path))
        self.possession = Possession(self.owners, scan, DockerPrivileged(), self.engine.held)
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
        # The kernel's interfaces are there at once, what the emulated /sys tells of them a moment later.
        await_that(lambda: self.before == picture(), "every device is what it was")
        self.assertEqual([], leftovers(self.docker.daemon))

    def requests(self, number):
        return (Request(self.gpus[number].id),
                Request(self.vfs[number].id, GrantOptions(netdev_name="ib0", memlock=memlock())))

    def acquired(self, number=0, name="c1"):
        return self.possession.acquire(self.requests(number), owner(name))

    def ready(self, name="c1", number=0):
        """A running container that has no device, made so that it can get those of ``number``; and their grants."""
        grants = self.acquired(number, name)
        self.engine.create(self.spec(name, parts=grants))
        self.engine.refit(name, ())
        self.engine.start(name)
        self.printed(name, b"up")
        self.engine.verify(name, ())
        return grants

    def nodes(self, name):
        return set(self.inside(name, "find", "/dev", "-type", "c")[1].split())


def owner(name):
    return Owner("test", "docker", name, f"uuid-of-{name}")


def picture():
    """What a device must be again after it was given back."""
    return {device.id: (device.netdev, device.mac, device.rdma, device.nodes, device.health, device.host_use)
            for device in scan().devices}


class TestGrants(DeviceTestCase):
    def test_one_gpu_and_one_vf_and_no_others(self):
        self.running("plain")
        grants = self.acquired()
        self.running(parts=grants)
        self.engine.verify("c1", grants)
        granted = {node.path for grant in grants for node in grant.nodes}
        self.assertEqual(granted, self.nodes("c1") - self.nodes("plain"))
        self.assertThat(self.inside("c1", "cat", "/sys/class/net/ib0/type")[1], Contains("32"))
        # A node that is there and allowed leads to a driver that is not; one that is made up is refused.
        self.assertThat(self.inside("c1", "cat", "/dev/nvidia0")[1], Contains(ENXIO))
        self.inside("c1", "mknod", "/nvidia1", "c", "195", "1")
        self.assertThat(self.inside("c1", "cat", "/nvidia1")[1], Contains(EPERM))

    def test_the_first_program_finds_its_devices(self):
        grants = self.acquired()
        self.running(parts=grants, image="short")
        await_that(lambda: self.engine.container("c1").status is Status.STOPPED, "the program ends")
        found = self.engine.console_log("c1").decode().split()
        self.assertEqual([], [path for path in ("/dev/nvidia0", "/dev/nvidiactl", "ib0") if path not in found])

    def test_every_start_gives_the_devices_again(self):
        grants = self.acquired()
        self.running(parts=grants)
        self.printed("c1", b"up")
        for force in (False, True):
            self.engine.restart("c1", timeout=60, force=force)
            self.engine.verify("c1", grants)

    def test_a_stopped_container_keeps_no_interface(self):
        self.running(parts=self.acquired())
        self.engine.stop("c1", timeout=60, force=True)
        await_that(lambda: scan().get(self.vfs[0].id).netdev == self.vfs[0].netdev, "the interface is back")

    def test_refitted_after_the_host_named_interfaces_anew(self):
        self.running(parts=self.acquired())
        self.engine.stop("c1", timeout=60, force=True)
        DockerPrivileged().rename_netdev(self.vfs[0].netdev, "other0")
        self.assertTrue(wait_for(lambda: scan().get(self.vfs[0].id).netdev == "other0", 60))
        grants = self.acquired()
        self.engine.refit("c1", grants)
        self.engine.start("c1")
        self.engine.verify("c1", grants)

    def test_attach_and_detach_while_it_runs(self):
        gpu, vf = self.ready()
        for grant in (gpu, vf):
            self.engine.attach("c1", grant)
        self.engine.verify("c1", (gpu, vf))
        self.assertThat(self.inside("c1", "cat", "/dev/nvidia0")[1], Contains(ENXIO))
        self.engine.restart("c1", timeout=60, force=True)
        self.engine.verify("c1", (gpu, vf))
        self.engine.detach("c1", vf, [gpu])
        self.engine.verify("c1", [gpu])
        self.engine.detach("c1", gpu)
        self.engine.verify("c1", [])
        self.engine.restart("c1", timeout=60, force=True)
        self.engine.verify("c1", [])

    def test_detached_means_gone_for_who_kept_a_node_too(self):
        gpu, _ = self.ready()
        self.engine.attach("c1", gpu)
        self.assertEqual(0, self.inside("c1", "mknod", "/kept", "c", "195", "0")[0])
        self.assertThat(self.inside("c1", "cat", "/kept")[1], Contains(ENXIO))
        self.engine.detach("c1", gpu)
        self.assertThat(self.inside("c1", "cat", "/kept")[1], Contains(EPERM))

    def test_detach_of_one_of_two_leaves_the_other_whole(self):
        grants = self.possession.acquire([Request(gpu.id) for gpu in self.gpus[:2]], owner("c1"))
        self.running(parts=grants)
        for gone, stays in ((0, 1), (1, 0)):
            self.engine.detach("c1", grants[gone], [grants[stays]])
            self.engine.verify("c1", [grants[stays]])
            self.engine.attach("c1", grants[gone])
            self.engine.verify("c1", grants)

    def test_hot_plugged_devices_come_back_from_every_end(self):
        for end in (lambda: self.engine.stop("c1", timeout=60),
                    lambda: self.engine.stop("c1", timeout=60, force=True),
                    lambda: self.engine.delete("c1")):
            for grant in self.ready():
                self.engine.attach("c1", grant)
            end()
            self.engine.delete("c1")
            self.assertEqual((), self.possession.give_back(owner("c1")))
            await_that(lambda: self.before == picture(), "every device is what it was")

    def test_an_attachment_that_fails_half_way_leaves_nothing(self):
        grants = self.ready()
        # The container's own node is in the way of the VF's last one.
        self.inside("c1", "mkdir", "-p", "/dev/infiniband")
        self.inside("c1", "touch", max(node.path for node in grants[1].nodes))
        error = self.assertRaises(errors.HostActionFailed, self.engine.attach, "c1", grants[1])
        self.assertThat(str(error), Contains("something else"))
        self.engine.verify("c1", ())
        self.assertEqual({}, dict(self.engine.container("c1").interfaces))

    def test_no_link_of_the_tenant_is_followed(self):
        gpu, _ = self.ready()
        self.inside("c1", "ln", "-s", "/bin", "/dev/dri")
        self.assertRaises(errors.HostActionFailed, self.engine.attach, "c1", gpu)
        self.engine.verify("c1", ())
        self.assertEqual("", self.inside("c1", "find", "/bin", "-type", "c")[1])

    def test_what_a_container_was_not_made_for_is_refused(self):
        self.running()
        grants = self.acquired()
        error = self.assertRaises(errors.SpecError, self.engine.attach, "c1", grants[1])
        self.assertThat(str(error), Contains("IPC_LOCK"))
        self.engine.verify("c1", ())

    def test_two_containers_reach_each_other_over_their_vfs(self):
        for number, name in enumerate(("c1", "c2")):
            self.running(name, parts=self.acquired(number, name))
            pid = str(self.engine.metrics(name).pid)
            for words in (["address", "add", f"10.9.0.{number + 1}/24", "dev", "ib0"], ["link", "set", "ib0", "up"]):
                subprocess.run(["nsenter", "--target", pid, "--net", "ip", *words], check=True)
        self.assertEqual(0, self.inside("c1", "ping", "-c", "1", "-W", "30", "10.9.0.2")[0])

    def test_an_interface_of_the_cloud_moves_in_and_back(self):
        subprocess.run(["ip", "link", "add", "one-1-0", "type", "veth", "peer", "name", "one-1-0p"], check=True)
        self.addCleanup(subprocess.run, ["ip", "link", "delete", "one-1-0"], check=True)
        self.running(parts=(Nic("eth0", "one-1-0p"),))
        self.assertEqual({"eth0": "one-1-0p"}, dict(self.engine.containers()[0].interfaces))
        self.assertEqual(0, self.inside("c1", "ip", "link", "show", "eth0")[0])
        self.engine.restart("c1", timeout=60, force=True)
        self.assertEqual(0, self.inside("c1", "ip", "link", "show", "eth0")[0])
        self.engine.delete("c1")
        subprocess.run(["ip", "link", "show", "one-1-0p"], check=True, stdout=subprocess.DEVNULL)

    def test_an_interface_that_is_not_there_ends_the_start(self):
        self.engine.create(self.spec(parts=(Nic("eth0", "nowhere0"),)))
        error = self.assertRaises(errors.EngineError, self.engine.start, "c1")
        self.assertThat(str(error), Contains("no interface nowhere0"))
        self.assertEqual(Status.STOPPED, self.engine.container("c1").status)


class TestPossession(DeviceTestCase):
    def test_what_anothers_container_uses_is_refused(self):
        api = self.docker.daemon.api()
        api.create_container("polite", name="someone", host_config=api.create_host_config(
            devices=["/dev/nvidia0:/dev/nvidia0:rwm"]))
        error = self.assertRaises(errors.DeviceHeld, self.acquired)
        self.assertThat(str(error), Contains("someone"))
        self.assertEqual({}, self.owners.records())

    def test_what_our_container_has_is_known_without_asking_for_each(self):
        self.running(parts=self.acquired())
        self.assertEqual({self.gpus[0].id: "c1", self.vfs[0].id: "c1"}, dict(self.engine.held(scan().devices)))
