# SPDX-License-Identifier: Apache-2.0
"""Share the actions of OpenNebula's driver for Docker between its tests, and check what is left after them."""

import subprocess
from pathlib import Path

import testtools

from containerhost.allocation.store import AllocationStore
from containerhost.devices.model import Kind, Role
from containerhost.inventory.scan import scan
from containerhost.linux.sysfs import Host
from tests.conformance.engine.frame import picture
from tests.functional import drivercontract
from tests.functional.lxd import mounts_below
from tests.functional_docker.dockerd import Daemon, leftovers
from tests.functional_one.diskfiles import loops
from tests.functional_one.vms import Machine
from tests.functional_onedock.node import DockerNode
from tests.waiting import await_that

SHUTDOWN, POWEROFF, SUSPEND, CLEANUP, UNDEPLOY = 12, 18, 6, 23, 29
BOOT, RESUME, RESTORE, BOOT_UNDEPLOYED = 2, 20, 21, 32
OURS = ("one-1", "one-2", "oi-", "ifb-")  # interfaces


class OnedockCase(drivercontract.Actions, testtools.TestCase):
    """:cvar inline: the driver is called within this process; LifeTest calls the scripts"""

    inline = True

    def setUp(self) -> None:
        super().setUp()
        self.node = self.useFixture(DockerNode(self.daemon()))
        self.node.inline = self.inline
        self.engine = self.node.docker.engine
        devices = scan().devices
        self.before, self.images = picture(), self.image_names()
        self.gpus = [device for device in devices if device.kind is Kind.GPU]
        self.vfs = [device for device in devices if device.role is Role.VF]
        self.addCleanup(self.nothing_is_left)

    def daemon(self) -> Daemon | None:
        """Return the test's own daemon; None is that of all tests."""
        return None

    def nothing_is_left(self) -> None:
        self.assertEqual((), self.engine.containers())
        self.assertEqual({}, AllocationStore(self.node.owners).records())
        self.assertEqual(self.images, self.image_names())
        self.assertEqual([], [entry.name for entry in self.node.state.glob("one-*")])
        self.assertEqual([], [name for name in Host().names("/sys/class/net") if name.startswith(OURS)])
        self.assertEqual([], mounts_below(self.node.base))
        self.assertEqual([], loops(self.node.base))
        # dockerd itself finishes requests of a killed action.
        await_that(lambda: leftovers(self.node.docker.daemon) == [], "dockerd has removed what it had of containers")
        # The kernel's interfaces exist immediately, their emulated /sys a moment later.
        await_that(lambda: self.before == picture(), "every device is what it was")

    def image_names(self) -> set[str]:
        return {name for image in self.node.docker.daemon.api().images(all=True)
                for name in (image["Id"], *(image["RepoTags"] or ()))}

    def inspect(self, machine: Machine) -> dict:
        return dict(self.engine.client.container(machine.name))

    def pid(self, machine: Machine) -> int:
        return int(self.inspect(machine)["State"]["Pid"])

    def inside(self, machine: Machine, *command: str) -> str:
        return self.node.docker.inside(machine.name, *command)[1]

    def shell(self, machine: Machine, script: str) -> str:
        return self.inside(machine, "sh", "-c", script)

    def ports(self) -> str:
        return subprocess.run(["ip", "link", "show", "master", "one-br0"], capture_output=True, text=True,
                              check=True).stdout

    def file(self, machine: Machine, name: str) -> Path:
        return self.node.directory(machine) / name


def own(**attributes: str) -> str:
    """Elements of a template."""
    return "".join(f"<{key}><![CDATA[{value}]]></{key}>" for key, value in attributes.items())
