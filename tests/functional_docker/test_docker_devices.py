# SPDX-License-Identifier: Apache-2.0
"""Devices in real containers on Docker, on emulated hardware: exactly what is granted, and everything given back."""

import subprocess

from testtools.matchers import Contains

from containerhost import errors
from containerhost.devices.scan import scan
from containerhost.engines import Status
from containerhost.spec import Nic
from tests.functional import contract
from tests.functional.contract import ENXIO, EPERM
from tests.functional_docker.base import DockerDeviceCase
from tests.waiting import await_that


class DeviceTest(contract.DeviceContract, DockerDeviceCase):
    def ready(self, name="c1", number=0):
        grants = self.taken(number, name)
        self.engine.create(self.spec(name, parts=grants))
        self.engine.update_devices(name, ())
        self.engine.start(name)
        self.up(name)
        self.engine.verify(name, ())
        return grants

    def someones(self, gpu):
        api = self.docker.daemon.api()
        api.create_container("polite", name="someone", host_config=api.create_host_config(
            devices=["/dev/nvidia0:/dev/nvidia0:rwm"]))

    def test_the_first_program_finds_its_devices(self):
        grants = self.taken()
        self.running(parts=grants, image="short")
        await_that(lambda: self.engine.container("c1").status is Status.STOPPED, "the program ends")
        found = self.engine.console_log("c1").decode().split()
        self.assertEqual([], [path for path in ("/dev/nvidia0", "/dev/nvidiactl", "ib0") if path not in found])

    def test_detached_means_gone_for_who_kept_a_node_too(self):
        gpu, _ = self.ready()
        self.engine.attach("c1", gpu)
        self.assertEqual(0, self.inside("c1", "mknod", "/kept", "c", "195", "0")[0])
        self.assertThat(self.inside("c1", "cat", "/kept")[1], Contains(ENXIO))
        self.engine.detach("c1", gpu)
        self.assertThat(self.inside("c1", "cat", "/kept")[1], Contains(EPERM))

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

    def test_what_our_container_has_is_known_without_asking_for_each(self):
        self.running(parts=self.taken())
        self.assertEqual({self.gpus[0].id: "c1", self.vfs[0].id: "c1"}, dict(self.engine.held(scan().devices)))

    def test_what_a_container_was_not_made_for_is_refused(self):
        self.running()
        grants = self.taken()
        error = self.assertRaises(errors.SpecError, self.engine.attach, "c1", grants[1])
        self.assertThat(str(error), Contains("IPC_LOCK"))
        self.engine.verify("c1", ())
