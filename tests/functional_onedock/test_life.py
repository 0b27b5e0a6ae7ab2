# SPDX-License-Identifier: Apache-2.0
"""A VM on Docker from its first deployment to its end, by the scripts that oned calls."""

import json
import time

from containerhost.allocation.store import AllocationStore
from containerhost.engines.contract import Status
from onedock import imageref
from tests import levels
from tests.functional import drivercontract
from tests.functional_one.vms import Machine
from tests.functional_onedock.base import (
    BOOT,
    BOOT_UNDEPLOYED,
    CLEANUP,
    POWEROFF,
    RESTORE,
    RESUME,
    SHUTDOWN,
    SUSPEND,
    UNDEPLOY,
    OnedockCase,
    own,
)
from tests.waiting import await_that

SAVED = Machine().disks.replace("<SAVE><![CDATA[NO]]>", "<SAVE><![CDATA[YES]]>")
NETWORK = (("ETH0_MAC", "02:00:0a:63:01:00"), ("ETH0_IP", "10.1.0.5"), ("ETH0_MASK", "255.255.0.0"),
           ("ETH0_GATEWAY", "10.1.0.1"), ("ETH0_DNS", "10.1.0.1 10.1.0.2"), ("ETH0_IP6", "fd00::5"),
           ("ETH1_MAC", "02:00:0a:63:01:01"), ("ETH1_IP", "10.2.0.5"), ("ETH1_SEARCH_DOMAIN", "example.org"))
TELL = "sh -c 'id -g; pwd; echo $A; hostname; trap \"exit 0\" TERM; while :; do sleep 1000 & wait $!; done'"


@levels.exhaustive("the other one of its kind stays", tests=("test_cancel_works_from_nothing_and_twice",))
class LifeTest(drivercontract.LifeContract, OnedockCase):
    inline = False

    def test_from_deploy_to_terminate(self) -> None:
        self.node.forks = False
        hostile = "it's $(x)\n`y`"
        machine = self.deployed(Machine(
            nics=(0, 1), cpu="0.5", context=(*NETWORK, ("KEY", hostile)),
            more=own(DOCKER_COMMAND=TELL, DOCKER_WORKDIR="/etc", DOCKER_ENVIRONMENT='A="one;two" B=$(reboot)',
                     DOCKER_USER="0:1000", DOCKER_HOSTNAME="web")))
        made = self.inspect(machine)
        self.assertEqual((False, None, 50000, 128 << 20, "none", False),
                         tuple(made["HostConfig"][key] for key in ("Privileged", "SecurityOpt", "CpuQuota", "Memory",
                                                                   "NetworkMode", "ReadonlyRootfs")))
        self.assertEqual([], made["HostConfig"]["CapAdd"] or [])
        self.assertIn("B=$(reboot)", made["Config"]["Env"])
        await_that(lambda: self.engine.console_log("one-1").decode().split() == ["1000", "/etc", "one;two", "web"],
                   "the program tells what it finds")
        self.assertEqual(f"10.1.0.1|{hostile}", self.shell(
            machine, ". /context/context.sh; printf '%s|%s' \"$ETH0_GATEWAY\" \"$KEY\""))
        self.assertEqual("nameserver 10.1.0.1\nnameserver 10.1.0.2\nsearch example.org\n",
                         self.inside(machine, "cat", "/etc/resolv.conf"))
        shown = self.inside(machine, "ip", "addr")
        for address in ("10.1.0.5/16", "10.2.0.5/24", "fd00::5/64", machine.mac(0), machine.mac(1)):
            self.assertIn(address, shown)
        self.assertIn("default via 10.1.0.1 dev eth0", self.inside(machine, "ip", "route"))
        for port in ("one-1-0", "one-1-1"):
            self.assertIn(port, self.ports())
        self.assertEqual("one-1\n", self.ok("deploy", machine, lcm=BOOT))
        self.ok("shutdown", machine, lcm=CLEANUP)
        self.assertFalse(self.engine.exists("one-1"))
        self.ok("shutdown", machine, lcm=SHUTDOWN)

    def test_the_first_program_finds_its_network_and_devices(self) -> None:
        script = "ip addr; ls /dev/nvidia0; cat /context/context.sh /etc/resolv.conf; echo end; exec sleep 1000"
        self.deployed(Machine(nics=(0,), devices=(self.gpus[0],), context=NETWORK,
                              more=own(DOCKER_ENTRYPOINT=f"sh -c '{script}'")))
        await_that(lambda: b"end\n" in self.engine.console_log("one-1"), "the program tells what it finds")
        found = self.engine.console_log("one-1").decode()
        for words in ("10.1.0.5/16", "/dev/nvidia0\n", "ETH0_IP='10.1.0.5'", "nameserver 10.1.0.2", "end\n"):
            self.assertIn(words, found)

    def test_poweroff_keeps_what_it_wrote_and_its_devices(self) -> None:
        machine = self.deployed(Machine(devices=(self.gpus[0], self.vfs[0]), nics=(0,)))
        self.shell(machine, "echo kept > /root-file")
        self.ok("shutdown", machine, lcm=POWEROFF)
        self.assertEqual(Status.STOPPED, self.status(machine))
        self.assertIn('STATE="POWEROFF"', self.node.probe("vm/status").out)
        self.assertEqual({self.gpus[0].id, self.vfs[0].id}, set(AllocationStore(self.node.owners).records()))
        self.ok("deploy", machine.changed(devices=(self.gpus[1], self.vfs[0])), lcm=RESUME)
        self.assertEqual("kept\n", self.inside(machine, "cat", "/root-file"))
        self.assertEqual({self.gpus[1].id, self.vfs[0].id}, set(AllocationStore(self.node.owners).records()))
        self.assertEqual("/dev/nvidia1\n", self.shell(machine, "ls /dev/nvidia0 /dev/nvidia1 2>/dev/null"))

    def test_what_it_wrote_stays_when_a_later_step_of_its_resumption_fails(self) -> None:
        """oned cancels it after a failure of a network driver, and says only from what state it was to come back."""
        machine = self.deployed()
        self.shell(machine, "echo written > /kept")
        for before, lcm in ((POWEROFF, RESUME), (SUSPEND, RESTORE)):
            self.ok("save" if before == SUSPEND else "cancel", machine, lcm=before)
            self.ok("restore" if before == SUSPEND else "deploy", machine, lcm=lcm)
            self.ok("cancel", machine, lcm=lcm)
            self.assertEqual(Status.STOPPED, self.status(machine))
            self.ok("deploy", machine, lcm=RESUME)
            self.assertEqual("written\n", self.inside(machine, "cat", "/kept"))

    @levels.exhaustive("a stop and a start, which it is made of, stay")
    def test_reboot_and_reset_start_anew(self) -> None:
        machine = self.deployed(Machine(devices=(self.vfs[0],), nics=(0,), context=NETWORK))
        for action in ("reboot", "reset"):
            before = self.pid(machine)
            self.ok(action, machine)
            self.assertNotIn(self.pid(machine), (before, 0))
        self.assertIn("ibp0", self.inside(machine, "cat", "/proc/net/dev"))
        self.assertIn("10.1.0.5/16", self.inside(machine, "ip", "addr"))

    def test_a_program_that_does_not_end_is_told_and_runs_on(self) -> None:
        machine = self.deployed(image="deaf")
        begin = time.monotonic()
        self.refused("did not end within 3 s and still runs", "shutdown", machine, lcm=SHUTDOWN)
        self.assertGreater(time.monotonic() - begin, 3)
        self.assertEqual(Status.RUNNING, self.status(machine))

    def test_a_program_that_fails_at_once_is_no_vm(self) -> None:
        self.node.configure("start_seconds = 60.0\n")
        machine = Machine(more=own(DOCKER_COMMAND="sh -c 'echo no such luck; exit 7'"))
        self.node.give_disk(machine)
        self.assertIn("no such luck", self.refused("with status 7", "deploy", machine, lcm=BOOT).reason)
        self.nothing_is_left()
        self.refused("nosuchprogram", "deploy", machine.changed(more=own(DOCKER_COMMAND="nosuchprogram")), lcm=BOOT)
        self.nothing_is_left()

    def test_a_job_that_ends_well_is_a_vm_that_is_off(self) -> None:
        machine = self.deployed(Machine(more=own(DOCKER_COMMAND="echo done")))
        await_that(lambda: self.status(machine) is Status.STOPPED, "the job ends")
        self.assertIn('STATE="POWEROFF"', self.node.probe("vm/status").out)
        self.assertEqual(b"done\n", self.engine.console_log(machine.name))

    def test_an_undeployed_vm_takes_what_it_wrote_along(self) -> None:
        machine = self.deployed(Machine(more=own(DOCKER_COMMAND="sh -c 'exec sleep 1000'")))
        self.shell(machine, "echo written > /kept")
        self.ok("cancel", machine, lcm=UNDEPLOY)
        self.nothing_is_left()
        told = json.loads(self.file(machine, "disk.0").read_text())
        self.assertEqual(("disk.0.tar", 1, "docker://polite"), (told["archive"], told["vm"], told["reference"]))
        self.ok("deploy", machine, lcm=BOOT_UNDEPLOYED)
        self.assertEqual("written\n", self.inside(machine, "cat", "/kept"))
        self.ok("cancel", machine, lcm=CLEANUP)
        self.nothing_is_left()

    @levels.exhaustive("the other one of its kind stays")
    def test_a_vm_that_is_off_leaves_with_what_it_wrote(self) -> None:
        machine = self.deployed(Machine(devices=(self.gpus[0],), nics=(0,)))
        self.shell(machine, "echo written > /kept")
        self.assertIn("only a stopped one", self.node.command("onedock leave 1 0").reason)
        self.ok("cancel", machine, lcm=POWEROFF)
        for _ in range(2):
            self.assertEqual((0, ""), self.node.command("onedock leave 1 0")[::2])
        self.nothing_is_left()
        self.ok("deploy", machine, lcm=RESUME)
        self.assertEqual("written\n", self.inside(machine, "cat", "/kept"))

    def test_a_persistent_image_is_kept_at_the_end_only(self) -> None:
        machine = self.deployed(Machine(disks=SAVED))
        self.shell(machine, "echo written > /kept")
        self.ok("shutdown", machine, lcm=SHUTDOWN)
        self.nothing_is_left()
        ref = imageref.read(self.file(machine, "disk.0"))
        other = Machine(2)
        self.node.directory(other)
        for name in ("disk.0", "disk.0.tar"):
            self.file(machine, name).rename(self.file(other, name))
        self.ok("deploy", other, lcm=BOOT)
        self.assertEqual("written\n", self.inside(other, "cat", "/kept"))
        self.assertEqual(ref.image, self.inspect(other)["Image"])
        self.ok("cancel", other, lcm=CLEANUP)

    def test_what_the_transfer_driver_drops_is_gone(self) -> None:
        machine = self.deployed(Machine(devices=(self.gpus[0],), nics=(0,)))
        self.ok("cancel", machine, lcm=POWEROFF)
        self.assertEqual((0, ""), self.node.command("onedock drop 1")[::2])
        self.nothing_is_left()
        self.assertIn("is not an id of a VM", self.node.command("onedock drop ../x").reason)
