# SPDX-License-Identifier: Apache-2.0
"""Devices in real containers on Docker, on emulated hardware: exactly what is granted, and everything given back."""

import os
import signal
import subprocess
import time

from testtools.matchers import Contains

from containerhost import errors
from containerhost.engines.contract import Status
from containerhost.linux.process import childprocess
from tests import holddirectory
from tests.functional_docker.base import DockerDeviceCase
from tests.waiting import await_that


class DeviceTest(DockerDeviceCase):
    def test_the_first_program_finds_its_devices(self):
        grants = self.taken()
        self.running(parts=grants, image="short")
        await_that(lambda: self.engine.container("c1").status is Status.STOPPED, "the program ends")
        found = self.engine.console_log("c1").decode().split()
        self.assertEqual([], [path for path in ("/dev/nvidia0", "/dev/nvidiactl", "ib0") if path not in found])

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

    def test_held_directory_keeps_nobody_waiting_without_end(self):
        """Docker's tenants have no /dev/fuse by default; whatever else does it would do it from inside."""
        gpu, vf = self.ready()
        self.engine.attach("c1", gpu)
        dev, place = f"/proc/{self.engine.pid('c1')}/root/dev", self.directory() / "served"
        program = self.directory() / holddirectory.NAME
        holddirectory.compiled(program)
        with subprocess.Popen([program, dev, place], stdout=subprocess.DEVNULL, start_new_session=True) as holder:
            try:
                holddirectory.await_held()
                begin = time.monotonic()
                for act, grant in ((self.engine.attach, vf), (self.engine.detach, gpu)):
                    error = self.assertRaises(errors.HostActionFailed, act, "c1", grant)
                    self.assertRegex(str(error), "not done within|waits for the container")
                self.assertLess(time.monotonic() - begin, 3 * childprocess.TIMEOUT)
            finally:
                os.killpg(holder.pid, signal.SIGKILL)
        subprocess.run(["umount", place], check=True)
        place.rmdir()
        program.unlink()
        self.engine.detach("c1", gpu)
        self.engine.attach("c1", vf)
        self.engine.verify("c1", (vf,))

    def test_what_a_container_was_not_made_for_is_refused(self):
        self.running()
        grants = self.taken()
        error = self.assertRaises(errors.SpecError, self.engine.attach, "c1", grants[1])
        self.assertThat(str(error), Contains("IPC_LOCK"))
        self.engine.verify("c1", ())
