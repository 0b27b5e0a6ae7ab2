# SPDX-License-Identifier: Apache-2.0
"""Test what an image's configuration asks Docker for, and what a tenant writes, beside the container's limits."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fixtures

from containerhost.engines.contract import Status
from containerhost.engines.docker.client import DockerClient
from tests.functional_docker import dockerd
from tests.functional_one.vms import Machine
from tests.functional_onedock.base import BOOT_UNDEPLOYED, POWEROFF, RESUME, UNDEPLOY, OnedockCase
from tests.functional_onedock.test_life import SAVED

INTERVAL = 5 * 10**9  # ns
WANTS = ("VOLUME /srv/data", "VOLUME /etc/link/data", "HEALTHCHECK --interval=1ms --timeout=1s CMD true")
IMAGE = "hostile"


class HostileImageTest(OnedockCase):
    def setUp(self) -> None:
        super().setUp()
        api = self.node.docker.daemon.api()
        program = dockerd.IMAGES["polite"]
        api.import_image_from_data(dockerd.root_file_system(), repository=IMAGE, tag="latest",
                                   changes=[f'CMD ["/bin/sh", "-c", "{program}"]', *WANTS])
        self.addCleanup(api.remove_image, IMAGE)

    def test_data_in_an_images_volume_is_in_the_root(self) -> None:
        """Else no quota would hold it, and it would be lost with a save, an undeployment or a revert."""
        machine = self.deployed(Machine(), image=IMAGE)
        self.assertNotIn("/srv/data", self.shell(machine, "cat /proc/mounts"))
        self.shell(machine, "echo mine > /srv/data/file")
        self.ok("cancel", machine, lcm=POWEROFF)
        self.ok("deploy", machine, lcm=RESUME)
        self.assertEqual("mine\n", self.shell(machine, "cat /srv/data/file"))
        self.ok("cancel", machine, lcm=UNDEPLOY)
        self.ok("deploy", machine, lcm=BOOT_UNDEPLOYED)
        self.assertEqual("mine\n", self.shell(machine, "cat /srv/data/file"))

    def test_health_checks_of_an_image_leave_the_host_time(self) -> None:
        machine = self.deployed(Machine(), image=IMAGE)
        check = self.inspect(machine)["Config"]["Healthcheck"]
        self.assertEqual((["CMD-SHELL", "true"], INTERVAL), (check["Test"], check["Interval"]))


class HostFilesTest(OnedockCase):
    """Docker shows a container files of the host's at /etc/hosts and /etc/hostname: no quota holds what is written
    there."""

    MUCH = 1 << 20  # bytes

    def test_what_a_tenant_writes_below_etc_is_in_the_root(self) -> None:
        machine = self.deployed()
        self.assertIn("127.0.0.1\tlocalhost", self.inside(machine, "cat", "/etc/hosts"))
        for name in ("hosts", "hostname", "resolv.conf"):
            self.shell(machine, f"head -c {self.MUCH} /dev/zero >> /etc/{name}")
        found = self.inspect(machine)
        for path in (found["HostsPath"], found["HostnamePath"], found["ResolvConfPath"], self.node.state / "one-1"):
            self.assertLess(used(Path(path)), self.MUCH)
        self.assertEqual("", self.shell(machine, "grep -E ' /etc/host(s|name) ' /proc/mounts"))
        self.ok("cancel", machine, lcm=POWEROFF)
        self.ok("deploy", machine, lcm=RESUME)
        self.assertEqual("one-1\n", self.inside(machine, "cat", "/etc/hostname"))
        self.assertIn("127.0.0.1\tlocalhost", self.inside(machine, "cat", "/etc/hosts"))

    def test_links_that_a_tenant_makes_lead_nowhere(self) -> None:
        machine = self.deployed()
        victim = self.node.base / "victim"
        victim.write_text("mine")
        self.shell(machine, f"rm /etc/hosts /etc/hostname; ln -s {victim} /etc/hosts; mkdir /etc/hostname")
        self.ok("cancel", machine, lcm=POWEROFF)
        self.ok("deploy", machine, lcm=RESUME)
        self.assertEqual("mine", victim.read_text())
        self.assertIn("localhost", self.inside(machine, "cat", "/etc/hosts"))
        self.shell(machine, f"mv /etc /etc.real; ln -s {victim.parent} /etc")
        self.ok("cancel", machine, lcm=POWEROFF)
        self.ok("deploy", machine, lcm=RESUME)
        self.assertFalse((victim.parent / "hosts").exists())


class SparseFileTest(OnedockCase):
    """Docker writes the holes of a sparse file as zeros, to a place that no quota of the container holds."""

    QUOTA = 16 << 20  # bytes

    def setUp(self) -> None:
        super().setUp()
        real = DockerClient.container

        def limited(client: DockerClient, name: str, **more: bool) -> Mapping[str, Any]:
            found = real(client, name, **more)
            return {**found, "HostConfig": found["HostConfig"] | {"StorageOpt": {"size": str(self.QUOTA)}}}

        # Docker's storage in the tests has no quotas: its report of one is faked here.
        self.useFixture(fixtures.MonkeyPatch("containerhost.engines.docker.client.DockerClient.container", limited))

    def test_a_sparse_file_is_not_written_out(self) -> None:
        machine = self.deployed()
        self.shell(machine, "echo mine > /kept; dd if=/dev/zero of=/sparse bs=1M seek=1100 count=0 2>&1")
        before = self.image_names()
        self.refused("sparse files", "snapshot_create", machine, "0")
        self.assertEqual(before, self.image_names())
        self.assertEqual(Status.RUNNING, self.status(machine))
        self.shell(machine, "rm /sparse")
        self.ok("snapshot_create", machine, "0")
        self.assertEqual(Status.RUNNING, self.status(machine))
        self.ok("snapshot_delete", machine, "snap-0")

    def test_a_vm_with_one_is_not_undeployed_and_loses_nothing(self) -> None:
        machine = self.deployed(Machine(disks=SAVED))
        self.shell(machine, "echo mine > /kept; dd if=/dev/zero of=/sparse bs=1M seek=1100 count=0 2>&1")
        self.refused("sparse files", "cancel", machine, lcm=UNDEPLOY)
        self.ok("deploy", machine, lcm=RESUME)
        self.assertEqual("mine\n", self.shell(machine, "cat /kept; rm /sparse"))
        self.ok("cancel", machine, lcm=UNDEPLOY)
        self.ok("deploy", machine, lcm=BOOT_UNDEPLOYED)
        self.assertEqual("mine\n", self.shell(machine, "cat /kept"))


def used(path: Path) -> int:
    """Return the bytes that a file, or all files of a directory, take."""
    files = [path] if path.is_file() else [found for found in path.rglob("*") if found.is_file()]
    return sum(os.stat(file).st_blocks * 512 for file in files)
