# SPDX-License-Identifier: Apache-2.0
"""Test the /dev/shm that VMs of a job share: the same with both drivers of OpenNebula.

Import the module, not its class: it would else be a test of the importing module.
"""

import subprocess
from pathlib import Path
from typing import Any

from containerhost.linux.files import atomic_write
from containerhost.linux.storage.memorymounts import MOUNTS
from tests.functional_one.vms import Machine

BOOT, POWEROFF, CLEANUP = 2, 18, 23


def member(number: int, job: str = "wave", size: int | str = 4, uid: int = 3, **more: Any) -> Machine:
    return Machine(number, uid=uid, **more).changed(
        user=f"<HPC><JOB>{job}</JOB><SHARED_MEMORY>{size}</SHARED_MEMORY></HPC>")


class SharedMemory:
    """Mixed into a test case of a driver that has ``node``, ``deployed``, ``ok``, ``refused`` and ``inside``."""

    node: Any

    def shell(self, machine: Machine, script: str) -> str:
        return self.inside(machine, "sh", "-c", script)

    def mounted(self) -> list[str]:
        """Return the mounts of this process's mount namespace, which no other run of tests has."""
        with open("/proc/self/mounts", encoding="utf-8") as table:
            return [line.split()[1] for line in table if line.split()[1].startswith(f"{MOUNTS}/")]

    def records(self) -> list[Path]:
        return sorted(Path(self.node.owners).glob("memory/*.json"))

    def assert_gone(self) -> None:
        self.assertEqual(([], []), (self.mounted(), self.records()))

    def test_a_job_has_one_and_others_have_not(self) -> None:
        mine, mate, other, stranger, none = (member(1), member(2), member(3, "other"), member(4, uid=4), Machine(5))
        for machine in (mine, mate, other, stranger, none):
            self.deployed(machine)
        self.shell(mine, "umask 077; echo secret > /dev/shm/x; mkfifo /dev/shm/fifo")
        self.assertEqual("secret\n", self.shell(mate, "cat /dev/shm/x"))
        self.shell(mate, "echo answer > /dev/shm/x; chown 7 /dev/shm/x")
        self.assertIn("answer", self.shell(mine, "cat /dev/shm/x"))
        self.assertEqual("7", self.shell(mine, "stat -c %u /dev/shm/x").strip())
        for machine in (other, stranger, none):
            self.assertEqual("", self.shell(machine, "test -e /dev/shm/x && echo there"), machine)
        self.ok("cancel", mine, lcm=CLEANUP)
        self.assertIn("answer", self.shell(mate, "cat /dev/shm/x"))
        for machine in (mate, other, stranger):
            self.ok("cancel", machine, lcm=CLEANUP)
        self.assert_gone()

    def test_hostile_member_reaches_no_further_than_its_job(self) -> None:
        first, second = self.deployed(member(1, size=2)), self.deployed(member(2, size=2))
        self.assertIn("No space left", self.shell(first, "dd if=/dev/zero of=/dev/shm/big bs=1M count=3 2>&1"))
        used = self.shell(second, "du -k /dev/shm/big; rm /dev/shm/big")
        self.assertIn("2048", used)
        files = "i=0; while [ $i -lt 600 ] && true > /dev/shm/f$i; do i=$((i+1)); done 2>&1; ls /dev/shm | wc -l"
        self.assertLess(int(self.shell(first, files).split()[-1]), 512)
        self.shell(first, "rm /dev/shm/f*")
        self.shell(first, "ln -s /etc/passwd /dev/shm/link; mknod /dev/shm/null c 1 3; cp /bin/busybox /dev/shm/sh; "
                          "chmod 4755 /dev/shm/sh; mkdir -p /dev/shm/a/../..; mkdir '/dev/shm/..x'")
        for script in ("/dev/shm/sh -c 'echo ran'", "mount -o remount,exec,dev /dev/shm; "
                       "/dev/shm/sh -c 'echo ran'"):
            for machine in (first, second):
                self.assertNotIn("ran\n", self.shell(machine, f"{script} 2>&1"))
        device = "test -c /dev/shm/null && echo > /dev/shm/null && echo ran"  # a user namespace cannot create any
        self.assertNotIn("ran\n", self.shell(second, device))
        for machine in (first, second):
            self.ok("cancel", machine, lcm=CLEANUP)
        self.assert_gone()

    def test_other_input_is_refused_and_leaves_nothing(self) -> None:
        for machine, words in (
            (member(1, size="many"), "SHARED_MEMORY='many'"), (member(1, size=0), "from 1 to 128"),
            (member(1, size=129), "from 1 to 128, the VM's MEMORY"), (member(1, job="../x"), "JOB='../x'"),
            (member(1, job=""), "JOB=''"), (member(1, size=""), "SHARED_MEMORY=''"),
        ):
            self.node.give_disk(machine)
            self.refused(words, "deploy", machine, lcm=BOOT)
            self.assert_gone()
        self.deployed(member(1))
        self.node.give_disk(member(2, size=5))
        self.refused("has 4 MiB, and 5 MiB are requested", "deploy", member(2, size=5), lcm=BOOT)
        self.assertEqual(1, len(self.records()))
        self.ok("cancel", member(1, job="now bad", size="x"), lcm=CLEANUP)
        self.assert_gone()

    def test_memory_comes_back_after_the_host_was_restarted(self) -> None:
        machine, mate = self.deployed(member(1)), self.deployed(member(2))
        for each in (machine, mate):
            self.ok("cancel", each, lcm=POWEROFF)
        for mount in self.mounted():
            subprocess.run(["umount", mount], check=True)
        for each in (machine, mate):
            self.ok("deploy", each, lcm=BOOT)
        self.shell(machine, "echo again > /dev/shm/x")
        self.assertEqual("again\n", self.shell(mate, "cat /dev/shm/x"))

    def test_what_a_killed_action_left_is_removed(self) -> None:
        """A record of a VM that has no container, and a memory whose record was removed."""
        machine = self.deployed(member(1))
        self.deployed(member(2, "other"))
        text = self.records()[0].read_text()
        self.ok("cancel", machine, lcm=CLEANUP)
        self.assertEqual(1, len(self.records()))
        lost = self.records()[0]
        left = lost.with_name(f"{lost.name[:-37]}{'0' * 32}.json")
        atomic_write(left, text.replace("one-2", "one-1").replace('"uuid": "2"', '"uuid": "1"').encode())
        self.reconcile()
        self.assertEqual([lost], self.records())
        lost.unlink()
        self.reconcile()
        self.assert_gone()
        self.ok("cancel", member(2, "other"), lcm=CLEANUP)
        self.assert_gone()
