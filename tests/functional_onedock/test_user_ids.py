# SPDX-License-Identifier: Apache-2.0
"""VMs on a daemon that maps their users to others of the host (userns-remap): everything as without."""

import subprocess
from pathlib import Path

from containerhost.allocation.store import AllocationStore
from tests import levels
from tests.conformance.engine.frame import ENXIO, EPERM
from tests.functional_docker import userids
from tests.functional_docker.dockerd import Daemon
from tests.functional_docker.userids import FIRST
from tests.functional_one.commands import Commands
from tests.functional_one.vms import ROOT, Machine
from tests.functional_onedock.base import POWEROFF, RESUME, OnedockCase, own
from tests.functional_onedock.test_parts import MARK, PLACE, addressed, disk
from tests.waiting import await_that

NODES = "cd /dev && find nvidia[0-9]* dri infiniband -type c 2>/dev/null | sort"


class UserIdsTest(Commands, OnedockCase):
    inline = False

    def daemon(self) -> Daemon:
        return userids.daemon()

    def owner(self, path: Path) -> tuple[int, int]:
        status = path.stat()
        return status.st_uid, status.st_gid

    def test_devices_at_the_start_and_while_it_runs(self) -> None:
        machine = self.deployed(Machine(devices=(self.gpus[0], self.vfs[0]),
                                        more=own(DOCKER_ENTRYPOINT=f"sh -c '{NODES}; exec sleep 1000'")))
        self.assertEqual(f"{FIRST}", Path(f"/proc/{self.pid(machine)}/uid_map").read_text().split()[1])
        uverbs = sorted(node.path for node in self.vfs[0].nodes if "uverbs" in node.path)[0].removeprefix("/dev/")
        first = ["dri/card0", "dri/renderD128", "infiniband/rdma_cm", uverbs, "nvidia0"]
        self.assertEqual(first, self.engine.console_log("one-1").decode().split())
        self.assertIn("ibp1", self.inside(machine, "cat", "/proc/net/dev"))
        before = self.pid(machine)
        for device, sign in ((self.gpus[1], "/dev/nvidia1"), (self.vfs[1], "/sys/class/net/ib13")):
            more = machine.changed(devices=(self.gpus[0], self.vfs[0], device), attach="pci")
            for _ in range(2):
                self.ok("attach_nic", more, machine.mac(9), "-", "-", "dummy", "one-1-9")
            self.assertEqual(f"{sign}\n", self.inside(machine, "ls", "-d", sign))
            self.assertIn(ENXIO, self.shell(machine, "cat /dev/nvidia0 /dev/nvidia1 /dev/dri/* 2>&1"))
            for _ in range(2):
                self.ok("detach_nic", more, machine.mac(9))
            self.assertIn("No such file", self.inside(machine, "ls", "-d", sign))
        self.assertEqual(first, self.shell(machine, NODES).split())
        self.assertEqual(before, self.pid(machine))
        self.assertIn(EPERM, self.inside(machine, "mknod", "/nvidia1", "c", "195", "1"))
        self.ok("reset", machine)
        self.assertEqual(first, self.shell(machine, NODES).split())
        self.assertEqual({self.gpus[0].id, self.vfs[0].id}, set(AllocationStore(self.node.owners).records()))
        self.assertEqual([], [str(path) for path in Path("/dev").glob(".containerhost-*")])

    def test_a_tenants_file_or_link_in_the_place_of_a_node(self) -> None:
        machine = self.deployed()
        more = machine.changed(devices=(self.gpus[0],), attach="pci")
        for script in ("ln -s /bin /dev/dri", "echo mine > /dev/nvidia0", "ln -s /bin/sh /dev/nvidia0"):
            self.shell(machine, script)
            self.refused("", "attach_nic", more, machine.mac(9), "-", "-", "dummy", "one-1-9")
            self.shell(machine, "rm -f /dev/nvidia0 /dev/dri")
        # As left by a killed action.
        self.shell(machine, ": > /dev/nvidia0")
        self.ok("attach_nic", more, machine.mac(9), "-", "-", "dummy", "one-1-9")
        self.assertEqual("crw-rw-rw-", self.inside(machine, "ls", "-l", "/dev/nvidia0").split()[0])
        self.assertEqual("", self.inside(machine, "find", "/bin", "-type", "c"))

    def test_files_are_the_mapped_roots(self) -> None:
        machine = Machine(nics=(0,), disks=ROOT + disk(2), context=addressed("10.1.0.5"))
        self.node.give_file_system(machine, 2)
        self.deployed(machine)
        more = machine.changed(disks=ROOT + disk(2) + disk(3, MARK))
        self.node.give_file_system(machine, 3)
        self.ok("attach_disk", more, *PLACE, "message")
        media = self.node.state / "one-1/media"
        for number in (2, 3):
            self.shell(machine, f"echo kept > /media/{number}/file")
            self.assertEqual((FIRST, FIRST), self.owner(media / f"{number}/file"))
        self.ok("detach_disk", more, *PLACE)
        self.assertIn("ETH0_IP='10.1.0.5'", self.inside(machine, "cat", "/context/context.sh"))
        self.assertIn("10.1.0.5/24", self.inside(machine, "ip", "addr"))
        self.shell(machine, "echo kept > /file; chown 1000:1000 /file")
        self.assertEqual((FIRST + 1000, FIRST + 1000), self.owner(Path(f"/proc/{self.pid(machine)}/root/file")))
        self.ok("snapshot_create", machine, "0")
        self.shell(machine, "rm /file")
        self.ok("snapshot_revert", machine, "snap-0")
        self.assertEqual("1000 kept\n", self.shell(machine, "echo $(stat -c %u /file) $(cat /file)"))
        self.ok("shutdown", machine, lcm=POWEROFF)
        self.ok("deploy", machine, lcm=RESUME)
        self.assertEqual("kept\n", self.inside(machine, "cat", "/media/2/file"))

    @levels.exhaustive("devices and files of mapped users stay")
    def test_a_command_is_the_containers_roots_and_ends_with_all_it_began(self) -> None:
        machine = self.deployed()
        made = Path(f"/proc/{self.pid(machine)}/root/made")
        self.begun(machine, "sh -c 'sleep 1001 & setsid sleep 1002 & echo x > /made; wait'")
        await_that(made.exists, "the command has begun all")
        self.assertEqual((FIRST, FIRST), self.owner(made))
        self.cancelled(machine)
        processes = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
        for program in ("sleep 1001", "sleep 1002"):
            self.assertNotIn(program, processes)
