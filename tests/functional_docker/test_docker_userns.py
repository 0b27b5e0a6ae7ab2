"""A daemon that gives containers user ids of their own (userns-remap): devices and disks all the same."""

import subprocess
from pathlib import Path

import fixtures
import testtools

from containerhost.devices.model import Kind, Role
from containerhost.devices.scan import scan
from containerhost.engines.docker.privileged import DockerPrivileged
from containerhost.engines.docker.volumes import Volumes
from containerhost.grants import GrantOptions
from containerhost.owners import Owner, Owners
from containerhost.possession import Possession, Request
from containerhost.spec import ContainerSpec, Cpu, Memory, Mount, RootDisk
from tests.functional.lxd import memlock
from tests.functional_docker.dockerd import Daemon
from tests.waiting import await_that

FIRST, COUNT = 200_000, 65_536
USER = "nobody"


class UserNamespaceTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.folder = Path(self.useFixture(fixtures.TempDir()).path)
        for name in ("subuid", "subgid"):
            file = self.folder / name
            file.write_text(f"{USER}:{FIRST}:{COUNT}\n")
            subprocess.run(["mount", "--bind", str(file), f"/etc/{name}"], check=True)
            self.addCleanup(subprocess.run, ["umount", f"/etc/{name}"], check=True)
        self.daemon = Daemon(f"--userns-remap={USER}")
        self.addCleanup(self.daemon.remove)
        self.daemon.base.chmod(0o711)  # as the folders above Docker's own are
        self.daemon.start()
        self.daemon.make_images()
        self.engine = self.daemon.engine()

    def inside(self, *command: str) -> str:
        api = self.daemon.api()
        return api.exec_start(api.exec_create("c1", list(command))).decode()

    def test_devices_and_disks_of_a_container_with_ids_of_its_own(self) -> None:
        self.assertEqual((FIRST, FIRST), self.engine.root_ids())
        volumes = Volumes(self.folder / "media")
        self.addCleanup(volumes.remove)
        volumes.prepare()
        disk = self.folder / "disk.1"
        with disk.open("wb") as file:
            file.truncate(8 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", str(disk)], check=True, capture_output=True)
        volumes.mount(1, disk, read_only=False, root=self.engine.root_ids())

        owner = Owner("test", "docker", "c1", "1")
        possession = Possession(Owners(self.folder / "owners"), scan, DockerPrivileged(), self.engine.held)
        gpus = [device.id for device in scan().devices if device.kind is Kind.GPU]
        vf = next(device.id for device in scan().devices if device.role is Role.VF)
        self.addCleanup(possession.give_back, owner)
        options = GrantOptions(netdev_name="ib0", memlock=memlock())
        grants = possession.acquire([Request(gpus[0]), Request(vf, options)], owner)
        self.engine.create(ContainerSpec(
            "c1", "polite", Cpu(1), Memory(64 << 20), RootDisk("any"), parts=grants,
            mounts=(Mount("media", str(volumes.folder), "/media", read_only=False, follows=True),)))
        self.addCleanup(self.engine.delete, "c1")
        self.engine.start("c1")
        await_that(lambda: b"up" in self.engine.console_log("c1"), "the container is up")
        self.engine.verify("c1", grants)
        pid = self.engine.client.container("c1")["State"]["Pid"]
        self.assertEqual(["0", str(FIRST), str(COUNT)], Path(f"/proc/{pid}/uid_map").read_text().split())
        self.assertIn("No such device or address", self.inside("cat", "/dev/nvidia0"))
        self.assertEqual("written\n", self.inside("sh", "-c", "echo written > /media/1/x; cat /media/1/x"))
        self.assertEqual(FIRST, (volumes.folder / "1/x").stat().st_uid)

        (more,) = possession.acquire([Request(gpus[1])], owner)
        self.engine.attach("c1", more)
        self.engine.verify("c1", (*grants, more))
        self.assertIn("No such device or address", self.inside("cat", "/dev/nvidia1"))
        self.engine.detach("c1", more, grants)
        self.engine.verify("c1", grants)
