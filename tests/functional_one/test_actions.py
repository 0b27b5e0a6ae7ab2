# SPDX-License-Identifier: Apache-2.0
"""The installed scripts, called as oned calls them, on the real LXD and emulated devices."""

import subprocess
import tarfile
from collections.abc import Callable
from unittest import mock

import fixtures
import testtools

from containerhost.allocation.store import AllocationStore
from containerhost.devices.model import Kind, Role
from containerhost.engines.contract import Status
from containerhost.engines.lxd.pooldisks import PoolDisks
from containerhost.errors import EngineBusy, EngineConflict, EngineTimeout
from containerhost.inventory.scan import scan
from lxdone import backend, conf
from onedriver import actions
from tests import levels
from tests.conformance.engine.frame import picture
from tests.functional import drivercontract, lostgpucontract
from tests.functional.containerhost.base import leftovers
from tests.functional_one import diskfiles
from tests.functional_one.node import Node, Result
from tests.functional_one.vms import Machine
from tests.waiting import await_that

SHUTDOWN, POWEROFF, SUSPEND, CLEANUP, UNDEPLOY, BOOT, RESUME, RESTORE = 12, 18, 6, 23, 29, 2, 20, 21
STOP, MIGRATE, BOOT_STOPPED, BOOT_UNDEPLOYED, BOOT_MIGRATED = 5, 7, 22, 32, 35
TIMEOUT = 60  # s


def raised(error: Exception) -> None:
    raise error


class ActionsCase(drivercontract.Actions, testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.node = self.useFixture(Node())
        self.engine = self.node.engine
        devices = scan().devices
        self.before, self.images_before = picture(), self.image_fingerprints()  # nova's tests keep theirs
        self.gpus = [device for device in devices if device.kind is Kind.GPU]
        self.vfs = [device for device in devices if device.role is Role.VF]
        self.addCleanup(self._nothing_is_left)

    def image_fingerprints(self) -> list[str]:
        return [image["fingerprint"] for image in self.engine.client.images()]

    def _nothing_is_left(self) -> None:
        self.assertEqual((), self.engine.containers())
        self.assertEqual({}, AllocationStore(self.node.owners).records())
        self.assertEqual(self.images_before, self.image_fingerprints())
        self.assertEqual((), PoolDisks(self.engine.client, self.node.lxd.pool).all())
        self.assertEqual([], [*self.node.state.glob("one-*"), *self.node.state.glob("disks/*")])
        self.assertEqual([], leftovers(self.node.lxd, "one-1"))
        # The kernel's interfaces exist immediately, their emulated /sys a moment later.
        await_that(lambda: self.before == picture(), "every device is what it was")

    def refused(self, words: str, action: str, machine: Machine, *arguments: str, lcm: int = 3) -> Result:
        result = super().refused(words, action, machine, *arguments, lcm=lcm)
        self.assertEqual(1, len([line for line in result.err.splitlines() if line in result.reason]), result.err)
        return result

    def pid(self, machine: Machine) -> int:
        return self.engine.metrics(machine.name).pid or 0

    def inside(self, machine: Machine, *command: str) -> str:
        done = subprocess.run(["nsenter", "--target", str(self.pid(machine)), "--all", *command], capture_output=True,
                              text=True, timeout=TIMEOUT, check=False, env={"PATH": "/bin:/sbin:/usr/bin:/usr/sbin"})
        return done.stdout + done.stderr

    def wait_for(self, condition: Callable[[], object]) -> None:
        await_that(condition, "it comes to be")


@levels.exhaustive("RootTest has two VMs of one image; a power-off keeps devices", tests=(
    "test_devices_changed_while_it_was_off", "test_two_vms_of_one_image"))
@levels.exhaustive("the other one of its kind stays", tests=("test_cancel_works_from_nothing_and_twice",))
class LifeTest(drivercontract.LifeContract, ActionsCase):
    def test_from_deploy_to_terminate(self) -> None:
        self.node.forks = False
        machine = self.deployed(Machine(nics=(0,), cpu="0.5", vcpu=2,
                                        context=(("NETWORK", "YES"), ("KEY", "it's $(x)\n`y`"))))
        instance, _ = self.engine.client.instance("one-1")
        self.assertEqual(("2", "50ms/100ms", "true", "false"),
                         tuple(instance["config"][key] for key in ("limits.cpu", "limits.cpu.allowance",
                                                                   "security.idmap.isolated", "security.privileged")))
        self.assertIn(machine.mac(0), self.inside(machine, "cat", "/sys/class/net/eth0/address"))
        ports = subprocess.run(["ip", "link", "show", "master", "one-br0"], capture_output=True, text=True, check=True)
        self.assertIn("one-1-0", ports.stdout)
        self.assertEqual("YES|it's $(x)\n`y`", self.inside(
            machine, "sh", "-c", ". /context/context.sh; printf '%s|%s' \"$NETWORK\" \"$KEY\""))
        self.assertEqual(f"{machine.name}\n", self.ok("deploy", machine, lcm=BOOT))
        self.ok("shutdown", machine, lcm=SHUTDOWN)
        self.assertFalse(self.engine.exists("one-1"))
        self.ok("shutdown", machine, lcm=SHUTDOWN)

    def test_poweroff_keeps_disk_and_devices_and_resume_starts_it(self) -> None:
        machine = self.deployed(Machine(devices=(self.gpus[0],)))
        self.inside(machine, "sh", "-c", "echo kept > /root/file")
        self.ok("shutdown", machine, lcm=POWEROFF)
        self.assertEqual(Status.STOPPED, self.status(machine))
        self.assertEqual({self.gpus[0].id}, set(AllocationStore(self.node.owners).records()))
        self.ok("deploy", machine, lcm=RESUME)
        self.assertEqual("kept\n", self.inside(machine, "cat", "/root/file"))
        self.assertEqual("/dev/nvidia0\n", self.inside(machine, "sh", "-c", drivercontract.NVIDIA))

    def test_devices_changed_while_it_was_off(self) -> None:
        machine = self.deployed(Machine(devices=(self.gpus[0],)))
        self.ok("cancel", machine, lcm=POWEROFF)
        self.ok("deploy", machine.changed(devices=(self.gpus[1],)), lcm=RESUME)
        self.assertEqual({self.gpus[1].id}, set(AllocationStore(self.node.owners).records()))
        self.assertEqual("/dev/nvidia1\n", self.inside(machine, "sh", "-c", drivercontract.NVIDIA))

    @levels.exhaustive("a stop and a start, which it is made of, stay")
    def test_reboot_and_reset_start_anew(self) -> None:
        machine = self.deployed(Machine(devices=(self.gpus[0], self.vfs[0])))
        for action in ("reboot", "reset"):
            before = self.pid(machine)
            self.ok(action, machine)
            self.assertNotIn(self.pid(machine), (before, 0))
        self.assertIn("ibp1", self.inside(machine, "cat", "/proc/net/dev"))

    def test_two_vms_of_one_image(self) -> None:
        first, second = self.deployed(), self.deployed(Machine(2))
        self.ok("cancel", first, lcm=CLEANUP)
        self.assertEqual((Status.RUNNING, 1), (self.status(second), len(self.engine.client.images())))


class ChangedMeanwhileTest(ActionsCase):
    def test_a_vm_ends_whatever_its_owner_wrote_into_its_configuration(self) -> None:
        """`onevm updateconf` changes these while it runs."""
        machine = self.deployed(Machine(1))
        for changed in (machine.changed(more="<OS><UUID>not one</UUID></OS>"),
                        machine.changed(context=(("MY-KEY", "x"),)),
                        machine.changed(more="<GRAPHICS><TYPE>x</TYPE></GRAPHICS>")):
            self.ok("cancel", changed, lcm=POWEROFF)
        self.refused("cannot be the name of a variable", "deploy", machine.changed(context=(("MY-KEY", "x"),)),
                     lcm=RESUME)


@levels.exhaustive("functional_onedock has a GPU that left; a function that comes stays", tests=(
    "test_a_function_comes_to_a_vm_that_was_started_without_rdma",
    "test_a_gpu_that_left_the_host_keeps_nothing_else_from_changing"))
@levels.exhaustive("the other one of its kind stays", tests=("test_exactly_the_chosen_devices",))
class DevicesTest(drivercontract.DevicesContract, lostgpucontract.LostGpuContract, ActionsCase):
    def test_a_nic_comes_and_goes_while_it_runs(self) -> None:
        machine = self.deployed(Machine(nics=(0,)))
        more = machine.changed(nics=(0, 1), attach="nic")
        for _ in range(2):
            self.ok("attach_nic", more, machine.mac(1), "one-br0", "-", "dummy", "one-1-1")
        self.assertIn(machine.mac(1), self.inside(machine, "cat", "/sys/class/net/eth1/address"))
        for _ in range(2):
            self.ok("detach_nic", more, machine.mac(1))
        self.assertIn("No such file", self.inside(machine, "ls", "/sys/class/net/eth1"))
        self.assertIn(machine.mac(0), self.inside(machine, "cat", "/sys/class/net/eth0/address"))

    def attached(self, machine: Machine) -> dict[str, dict[str, str]]:
        return dict(self.engine.client.instance(machine.name).instance["devices"])

    def assert_limited(self, machine: Machine, memory: int) -> None:
        config = self.engine.client.instance(machine.name).instance["config"]
        self.assertEqual((str(memory), "50ms/100ms"), (config["limits.memory"], config["limits.cpu.allowance"]))

    def check_refused(self, machine: Machine, arguments: tuple[str, ...]) -> None:
        self.assertEqual({"mount-context", "root"}, set(self.attached(machine)))

    def test_a_function_comes_to_a_vm_that_was_started_without_rdma(self) -> None:
        machine = self.deployed()
        late = machine.changed(devices=(self.vfs[0],), attach="pci")
        self.ok("attach_nic", late, machine.mac(9), "-", "-", "dummy", "one-1-9")
        self.assertEqual({self.vfs[0].id}, set(AllocationStore(self.node.owners).records()))
        self.assertIn("uverbs", self.inside(machine, "ls", "/dev/infiniband"))
        self.ok("detach_nic", late, machine.mac(9))
        self.assertEqual({}, AllocationStore(self.node.owners).records())

    def test_devices_that_were_not_chosen_well_are_refused(self) -> None:
        machine = Machine(devices=(self.gpus[0],))
        self.node.give_disk(machine)
        address = "<ADDRESS>0000:3b:00:0</ADDRESS>"
        good = machine.deployment(BOOT)
        self.assertIn(address, good)
        for bad, words in (("", "--enforce"), ("<ADDRESS>0000:99:00:0</ADDRESS>", "no device 0000:99:00.0"),
                           ("<ADDRESS>0000:5e:00:0</ADDRESS>", "out of date"),
                           ("<ADDRESS>../x</ADDRESS>", "PCI address")):
            result = self.node.run("deploy", ["x", "node1", "1", "node1"], good.replace(address, bad))
            self.assertNotEqual(0, result.status)
            self.assertIn(words, result.reason)


@levels.exhaustive("a snapshot that brings the disk back stays", tests=(
    "test_snapshots_that_opennebula_forgot_go", "test_revert_that_fails_leaves_the_vm_running"))
class ChangesTest(ActionsCase):
    def test_resize_of_a_running_vm(self) -> None:
        machine = self.deployed(Machine(devices=(self.gpus[0],), nics=(0,)))
        before = self.pid(machine)
        self.ok("resize", machine.changed(vcpu=2, cpu="2", memory=256))
        config = self.engine.client.instance("one-1")[0]["config"]
        self.assertEqual(("2", "200ms/100ms", str(256 << 20)),
                         tuple(config[key] for key in ("limits.cpu", "limits.cpu.allowance", "limits.memory")))
        self.assertEqual(before, self.pid(machine))
        self.assertEqual("/dev/nvidia0\n", self.inside(machine, "ls", "/dev/nvidia0"))

    def test_snapshots_bring_the_disk_back_and_nothing_else(self) -> None:
        machine = self.deployed()
        self.inside(machine, "sh", "-c", "echo old > /root/file")
        for _ in range(2):
            self.assertEqual("snap-0\n", self.ok("snapshot_create", machine, "0"))
        self.inside(machine, "sh", "-c", "echo new > /root/file")
        self.ok("resize", machine.changed(memory=256))
        self.ok("snapshot_revert", machine.changed(memory=256), "snap-0")
        self.assertEqual("old\n", self.inside(machine, "cat", "/root/file"))
        self.assertEqual(str(256 << 20), self.engine.client.instance("one-1")[0]["config"]["limits.memory"])
        for _ in range(2):
            self.ok("snapshot_delete", machine, "snap-0")
        self.refused("no snapshot snap-0", "snapshot_revert", machine, "snap-0")

    def test_revert_that_fails_leaves_the_vm_running(self) -> None:
        machine = self.deployed(Machine(devices=(self.gpus[0],)))
        self.ok("snapshot_create", machine, "0")
        self.inside(machine, "sh", "-c", "echo kept > /root/file; sync")
        self.useFixture(fixtures.EnvironmentVariable("LXDONE_CONF", self.node.environment["LXDONE_CONF"]))
        vmm = backend.vmm(conf.load())
        call = actions.call("snapshot_revert", [machine.name, "snap-0", "1", "node1"], machine.message(3).encode())
        start = vmm._engine.start
        for fault in ((vmm._snapshots, "restore", EngineTimeout("LXD did not finish in time")),
                      (vmm._engine, "stop", EngineTimeout("LXD did not finish in time")),
                      (vmm._engine, "start", [EngineBusy("restoring"), EngineBusy("restoring"), None])):
            where, method, effect = fault
            works = isinstance(effect, list)
            with mock.patch.object(where, method, side_effect=effect) as called:
                if works:  # what LXD has not ended yet is waited for
                    effect[-1:] = []
                    called.side_effect = lambda name, left=effect: raised(left.pop()) if left else start(name)
                    vmm.snapshot_revert(call)
                else:
                    self.assertRaises(EngineTimeout, vmm.snapshot_revert, call)
            self.assertEqual(Status.RUNNING, self.status(machine))
            self.assertEqual({self.gpus[0].id}, set(AllocationStore(self.node.owners).records()))
            self.assertEqual("" if works else "kept\n", self.inside(machine, "sh", "-c", "cat /root/file 2>/dev/null"))

    def test_snapshots_that_opennebula_forgot_go(self) -> None:
        machine = self.deployed()
        for number in ("0", "1"):
            self.ok("snapshot_create", machine, number)
        self.ok("cancel", machine, lcm=POWEROFF)
        kept = "<SNAPSHOT><SNAPSHOT_ID>1</SNAPSHOT_ID><HYPERVISOR_ID>snap-1</HYPERVISOR_ID></SNAPSHOT>"
        self.ok("deploy", machine.changed(more=kept), lcm=RESUME)
        self.refused("no snapshot snap-0", "snapshot_revert", machine, "snap-0")
        self.ok("snapshot_revert", machine, "snap-1")
        self.refused("is not a snapshot", "snapshot_revert", machine, "../../x")

    def test_files_of_the_context_disk(self) -> None:
        content, disk = self.node.datastores / "content", self.node.datastores / "0/1/disk.2"
        for directory in (content, disk.parent):
            directory.mkdir(parents=True)
        machine = Machine(context=(("DISK_ID", "2"), ("FILES_DS", "/ds/2/a:'init.sh'"), ("PASSWORD", "x")))
        self.node.give_disk(machine)
        self.refused("disk.2 cannot be read", "deploy", machine, lcm=BOOT)
        for name in ("init.sh", "context.sh"):
            (content / name).write_text("echo hello\n")
        diskfiles.iso(content, disk)
        self.deployed(machine)
        seen = "ls /context; sh /context/init.sh; stat -c '%u %a' /context/context.sh; grep PASS /context/context.sh"
        self.assertEqual("context.sh\ninit.sh\nhello\n0 600\nPASSWORD='x'\n",
                         self.inside(machine, "sh", "-c", seen))
        (content / "init.sh").rename(content / "other.sh")
        diskfiles.iso(content, disk)
        self.ok("reconfigure", machine, "sdb", str(disk))
        self.assertEqual("context.sh\nother.sh\n", self.inside(machine, "ls", "/context"))

    @levels.exhaustive("the other one of its kind stays")
    def test_cloud_init_gets_the_context_too(self) -> None:
        machine = self.deployed(Machine(context=(
            ("SSH_PUBLIC_KEY", "ssh-ed25519 A"), ("USER_DATA", "#!/bin/sh\n:"), ("NETWORK", "YES"),
            ("ETH0_MAC", "02:00:0a:63:01:00"), ("ETH0_IP", "10.0.0.2"))))
        config = self.engine.client.instance("one-1")[0]["config"]
        told = {key.rpartition(".")[2]: text for key, text in config.items()}
        self.assertEqual(("#!/bin/sh\n:", True, True), (
            told["user-data"], "ssh-ed25519 A" in told["vendor-data"], "10.0.0.2/24" in told["network-config"]))
        self.ok("cancel", machine, lcm=POWEROFF)
        self.ok("deploy", machine.changed(context=()), lcm=RESUME)
        config = self.engine.client.instance("one-1")[0]["config"]
        self.assertEqual([], [key for key in config if key.endswith(("-data", "network-config"))])

    def test_a_new_context_is_seen_at_once(self) -> None:
        machine = self.deployed()
        path = "/var/lib/one//datastores/0/1/disk.2"
        changed = machine.changed(context=(("ETH0_IP", "10.0.0.1"),))
        self.ok("reconfigure", changed, "sdb", path)
        self.assertIn("ETH0_IP='10.0.0.1'", self.inside(machine, "cat", "/context/context.sh"))


class ProbesTest(drivercontract.ProbesContract, ActionsCase):
    def test_the_host_and_its_vms(self) -> None:
        machine = self.deployed(Machine(devices=(self.gpus[0],)))
        system = self.node.probe("host/system")
        self.assertEqual((0, ""), (system.status, system.reason))
        reported = [line for line in system.out.splitlines() if line.startswith("PCI=[")]
        self.assertEqual(len(self.gpus) + len(self.vfs), len(reported), system.out)
        self.assertIn('HYPERVISOR="lxdone"\n', system.out)
        for line in ("USEDCPU=", "FREEMEMORY=", "MEMORY_NODE=[ "):
            self.assertIn(line, self.node.probe("host/monitor").out)
        for action, lcm, state in (("save", SUSPEND, "SUSPENDED"), ("restore", RESTORE, "RUNNING"),
                                   ("cancel", POWEROFF, "POWEROFF")):
            self.ok(action, machine, lcm=lcm)
            self.assertIn(f'VM=[ ID="1", DEPLOY_ID="one-1", STATE="{state}" ]\n', self.node.probe("vm/status").out)

    def test_only_now_and_then_the_list_of_states_is_called_complete(self) -> None:
        for expected in ('SYNC_STATE="yes"\nMISSING_STATE="POWEROFF"\n', ""):
            self.assertEqual(expected, self.node.probe("vm/status").out)


class RefusalsTest(drivercontract.RefusalsContract, ActionsCase):
    absent = "/nonexistent/unix.socket"

    def test_what_cannot_be_is_refused_and_changes_nothing(self) -> None:
        machine = Machine()
        self.node.give_disk(machine)
        disk = "<DISK><DISK_ID>1</DISK_ID><TYPE>{}</TYPE><SIZE>4</SIZE></DISK>"
        for changed, words in (
            (machine.changed(disks=machine.disks + disk.format("swap")), "disk 1 is swap space"),
            (machine.changed(disks=machine.disks + disk.format("FILE")), "disk.1 cannot be read"),
            (machine.changed(disks=""), "no disk with an image"),
            (machine.changed(more="<LXD_SECURITY_PRIVILEGED>yes</LXD_SECURITY_PRIVILEGED>"), "not allowed on this"),
            (machine.changed(more="<LXD_RAW_LXC>x</LXD_RAW_LXC>"), "the template has LXD_RAW_LXC"),
            (machine.changed(nics=(0,), bridge="no-such-br"), "no-such-br"),
            (machine.changed(context=(("FILES_DS", "/a"),)), "the disk with them (DISK_ID)"),
            (machine.changed(context=(("NETWORK", "YES"), ("ETH0_MAC", "x"))), "ETH0_MAC of the context"),
            (machine.changed(more="<TOPOLOGY><PIN_POLICY>CORE</PIN_POLICY></TOPOLOGY>"), "the core chose no CPUs"),
        ):
            self.refused(words, "deploy", changed, lcm=BOOT)
            self._nothing_is_left()

    def test_a_disk_that_is_no_image_of_lxd(self) -> None:
        machine = Machine()
        self.refused("cannot be read", "deploy", machine, lcm=BOOT)
        directory = self.node.datastores / "0/1"
        directory.mkdir(parents=True)
        (directory / "disk.0").write_bytes(bytes(4096))
        self.refused("is nothing this driver knows", "deploy", machine, lcm=BOOT)
        with tarfile.open(directory / "disk.0", "w:gz") as archive:
            archive.add(__file__, "notes.txt")
        self.refused("cannot be used: it", "deploy", machine, lcm=BOOT)

    def test_actions_that_lxd_or_this_driver_cannot_do_say_so(self) -> None:
        machine = Machine()
        self.refused("LXD_LIVE_MIGRATION", "migrate", machine, "node2", "node1")

    def test_a_container_that_opennebula_did_not_make_is_left_alone(self) -> None:
        machine = self.deployed()
        config = self.engine.client.instance("one-1")[0]
        labels = {key: value for key, value in config["config"].items() if not key.startswith("user.")}
        self.engine.client.replace_instance("one-1", config | {"config": labels}, "")
        for action in ("deploy", "shutdown", "cancel", "reset"):
            self.refused("OpenNebula did not create", action, machine, lcm=BOOT)
        self.engine.client.replace_instance("one-1", config, "")

    def test_container_of_an_older_vm_of_the_same_number_is_left_alone(self) -> None:
        """OpenNebula counts anew after its database was restored."""
        machine = self.deployed()
        self.later_of_the_same_number(machine)
        self.useFixture(fixtures.EnvironmentVariable("LXDONE_CONF", self.node.environment["LXDONE_CONF"]))
        self.assertRaises(EngineConflict, backend.vmm(conf.load()).forget, 1)  # as monitoring does
        self.assertEqual(Status.STOPPED, self.status(machine))
        self.ok("deploy", machine, lcm=BOOT)

    def test_a_template_that_cuts_the_message_short_is_refused(self) -> None:
        machine = Machine(context=(("START_SCRIPT", "cat << EOT\nx\nEOT\n"),))
        result = self.node.act("deploy", machine, lcm=BOOT)
        self.assertNotEqual(0, result.status)
        self.assertIn("remove that line from the template", result.err)
