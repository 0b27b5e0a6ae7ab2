# SPDX-License-Identifier: Apache-2.0
"""The root actions through oslo.privsep's real daemon, with its few capabilities, on the emulated host."""

from tests import levels

from tests.functional.nova import base  # isort: skip

import os
import stat
import subprocess
from pathlib import Path

import fixtures
import nova.conf
import testtools
from oslo_privsep import priv_context

from containerhost.devices.model import Role
from containerhost.engines.lxd.engine import LxdEngine
from containerhost.engines.spec import BlockDevice, ContainerSpec, Cpu, Memory, RootDisk
from containerhost.errors import HostActionFailed
from containerhost.guest.guestfiles import GuestFiles
from containerhost.inventory.scan import scan
from containerhost.linux.poll import wait_until
from containerhost.privileged import Privileged
from nova_lxd_ext import privsep
from tests.fakehost.control import FakeHostControl
from tests.functional import lxd, storage

MIB = 2**20
# The context's original options: a reset of the options discards them.
CAPABILITIES = nova.conf.CONF.lxd_privileged.capabilities
GUIDS = ("0202:0202:0202:0001", "0202:0202:0202:0002")


class DaemonTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        nova.conf.CONF([], default_config_files=[])
        self.addCleanup(nova.conf.CONF.reset)
        nova.conf.CONF.set_default("capabilities", CAPABILITIES, group="lxd_privileged")
        privsep.context.start(priv_context.Method.FORK)
        self.addCleanup(privsep.context.stop)
        self.helper = privsep.Helper()
        self.vf = next(device for device in scan().devices
                       if base.LxdServers._is_ib_vf(device) and device.role is Role.VF)
        self.pf = scan().get(self.vf.parent)


class PrivsepTest(DaemonTest):
    def test_every_action_on_a_vf_works_from_the_daemon(self) -> None:
        before = (self.vf.rdma.node_guid, self.vf.rdma.port_guid)
        control = FakeHostControl.from_environment()
        for guids in (GUIDS, before):
            self.helper.set_vf_guids(self.pf.netdev, self.vf.vf_index, *guids)
            self.helper.unbind(self.vf.address, self.vf.driver)
            self.helper.reset(self.vf.address)
            self.helper.bind(self.vf.address, self.vf.driver)
            now = scan().get(self.vf.id)
            self.assertEqual(guids, (now.rdma.node_guid, now.rdma.port_guid))
            self.assertEqual(self.vf.address, control.resets()[-1])
        self.helper.link_down_and_flush(self.vf.netdev)
        for name in ("other0", self.vf.netdev):
            self.helper.rename_netdev(scan().get(self.vf.id).netdev, name)
            # The emulated host follows a renaming a moment later.
            self.assertTrue(wait_until(lambda name=name: scan().get(self.vf.id).netdev == name, 10))
        self.assertEqual(self.vf, scan().get(self.vf.id))

    @levels.exhaustive("another action of the daemon stays")
    def test_every_action_on_a_pair_of_interfaces_works_from_the_daemon(self) -> None:
        directory = Path("/sys/class/net")
        self.addCleanup(self.helper.remove_veth, "pair0")
        self.helper.make_veth("pair0", "pair1", "fa:16:3e:00:00:01", 1400, "test mark", True)
        self.assertEqual(("test mark", "1400"), tuple((directory / "pair0" / name).read_text().strip()
                                                      for name in ("ifalias", "mtu")))
        self.assertEqual("fa:16:3e:00:00:01", (directory / "pair1/address").read_text().strip())
        self.assertEqual("1", Path("/proc/sys/net/ipv6/conf/pair0/disable_ipv6").read_text().strip())
        up, no_arp = 0x1, 0x80
        self.assertEqual(up | no_arp, int((directory / "pair0/flags").read_text(), 16) & (up | no_arp))
        self.helper.compute_checksums("pair1")
        for _ in range(2):
            self.helper.shape("pair0", 1000, 2000, 3000)
            self.helper.shape_sent("pair0", "shaper0", 1000, 2000, 3000)
        self.assertTrue((directory / "shaper0").exists())
        self.assertIn("not changed", str(self.assertRaises(HostActionFailed, self.helper.remove_shaper, "pair0")))
        for _ in range(2):
            self.helper.remove_shaper("shaper0")
        self.assertFalse((directory / "shaper0").exists())
        self.helper.set_link("pair0", False)
        self.assertEqual(0, int((directory / "pair0/flags").read_text(), 16) & up)
        error = self.assertRaises(HostActionFailed, self.helper.enslave, "pair0", "no-bridge")
        self.assertIn("a port of bridge no-bridge: ", str(error))
        error = self.assertRaises(HostActionFailed, self.helper.remove_veth, self.pf.netdev)
        self.assertIn("not changed", str(error))
        self.helper.remove_veth("pair0")
        self.assertFalse((directory / "pair1").exists())
        self.helper.remove_veth("pair0")

    def test_what_a_container_sees_can_be_seen_from_the_daemon(self) -> None:
        daemon = self.useFixture(lxd.Lxd())
        engine = LxdEngine(daemon.daemon.client(), self.helper, locks=daemon.daemon.base)
        engine.create(ContainerSpec("c1", daemon.imported(), Cpu(1), Memory(64 * 2**20), RootDisk(lxd.POOL)))
        engine.start("c1")
        engine.verify("c1", ())
        seen = self.helper.inside(engine.metrics("c1").pid)
        self.assertEqual((1, 3), seen.nodes["/dev/null"])
        self.assertEqual(("lo",), seen.netdevs)
        pid = engine.metrics("c1").pid
        self.assertEqual((), self.helper.users([(1, 7)]))
        self.helper.thaw_left()
        with open("/dev/full", "rb") as full:
            process = subprocess.Popen(["nsenter", "--target", str(pid), "--all", "sleep", "60"], stdin=full)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.assertTrue(wait_until(lambda: "sleep" in str(self.helper.users([(1, 7)])), 10))

    def test_files_in_a_container_are_shared_by_the_daemon(self) -> None:
        daemon = self.useFixture(lxd.Lxd())
        engine = LxdEngine(daemon.daemon.client(), self.helper, locks=daemon.daemon.base)
        engine.create(ContainerSpec("c1", daemon.imported(), Cpu(1), Memory(64 * 2**20), RootDisk(lxd.POOL)))
        engine.start("c1")
        files = GuestFiles(engine.pid, self.helper)
        self.assertIsNone(files.read("c1", "ack.json"))
        files.write("c1", "ack.json", b"{}")
        self.assertEqual(b"{}", files.read("c1", "ack.json"))
        engine.execute("c1", ["sh", "-c", "cd /run/containerhost; rm ack.json; mkfifo ack.json"], b"", timeout=30)
        self.assertRaises(HostActionFailed, files.read, "c1", "ack.json")
        engine.delete("c1")
        self.assertFalse(engine.exists("c1"))

    @levels.exhaustive("another action of the daemon stays")
    def test_a_volume_is_taken_from_a_container_by_the_daemon(self) -> None:
        daemon, loop = self.useFixture(lxd.Lxd()), self.useFixture(storage.Loop(MIB))
        engine = LxdEngine(daemon.daemon.client(), self.helper, locks=daemon.daemon.base)
        engine.create(ContainerSpec("c1", daemon.imported(), Cpu(1), Memory(64 * MIB), RootDisk(lxd.POOL)))
        engine.start("c1")
        disk = BlockDevice("v", loop.path, "/dev/vdb")
        engine.attach("c1", disk)
        node = Path(f"/proc/{engine.metrics('c1').pid}/root/dev/vdb")
        before = (node.stat().st_mode, node.stat().st_uid)
        with engine.fenced("c1", disk):
            self.assertEqual((stat.S_IFBLK, 0), (node.stat().st_mode, node.stat().st_uid))
        self.assertEqual(before, (node.stat().st_mode, node.stat().st_uid))
        self.assertNotEqual(0, before[1])
        self.keeps_no_volume(engine, disk)

    def keeps_no_volume(self, engine: LxdEngine, disk: BlockDevice) -> None:
        """Detach a volume from container c1 while something else is in its place.

        First, when it has gone, its own node, bound elsewhere before; then, at its next attachment, the node of the
        first."""
        def inside(script: str) -> bool:
            return engine.execute("c1", ["sh", "-c", script], b"", timeout=30).status == 0

        self.assertTrue(inside("mkdir /root/old && touch /root/old/vdb /root/new && mount --bind /dev/vdb /root/old/vdb"
                               " && head -c 1 /root/old/vdb"))
        with engine.fenced("c1", disk):
            engine.detach("c1", disk)
            self.assertTrue(inside("mount --rbind /root/old /dev && test -e /dev/vdb"))
        self.assertFalse(inside("head -c 1 /root/old/vdb"))
        self.assertTrue(inside("umount -l /dev"))
        engine.attach("c1", disk)
        self.assertTrue(inside("mount --bind /dev/vdb /root/new && mount --rbind /root/old /dev"
                               " && head -c 1 /root/new"))
        engine.detach("c1", disk)
        self.assertFalse(inside("head -c 1 /root/new"))
        self.assertFalse(inside("head -c 1 /root/old/vdb"))

    def test_a_volume_is_copied_by_the_daemon(self) -> None:
        source, target = (self.useFixture(storage.Loop(size)) for size in (MIB, 2 * MIB))
        source.write(b"content", MIB - 7)
        self.assertEqual([MIB, 0], [self.helper.copy_block(source.path, target.path, place, 2 * MIB)
                                    for place in (0, MIB)])
        self.assertEqual(b"content", target.read(7, MIB - 7))
        error = self.assertRaises(HostActionFailed, self.helper.copy_block, target.path, source.path, 0, MIB)
        self.assertIn(str(2 * MIB), str(error))

    def test_the_hosts_own_disks_are_out_of_reach(self) -> None:
        """Test that the daemon does not hand the host to a compromised nova-compute."""
        loop, other = self.useFixture(storage.Loop(16 * MIB)), self.useFixture(storage.Loop(16 * MIB))
        before = os.stat(loop.path)
        number = (os.major(before.st_rdev), os.minor(before.st_rdev))
        for act in (lambda: self.helper.restore_block(os.getpid(), "c1", loop.path, os.getpid(), number, 0o666),
                    lambda: self.helper.fence_block(os.getpid(), "c1", loop.path, number)):
            self.assertIn("not LXD", str(self.assertRaises(HostActionFailed, act)))
        self.assertEqual((before.st_mode, before.st_uid), (os.stat(loop.path).st_mode, os.stat(loop.path).st_uid))
        subprocess.run(["mkfs.ext4", "-q", loop.path], check=True)
        directory = self.useFixture(fixtures.TempDir()).path
        subprocess.run(["mount", loop.path, directory], check=True)
        self.addCleanup(subprocess.run, ["umount", directory], check=True)
        for source, target in ((other.path, loop.path), (loop.path, other.path)):
            error = self.assertRaises(HostActionFailed, self.helper.copy_block, source, target, 0, MIB)
            self.assertIn("busy", str(error))

    def test_a_fifo_does_not_hold_up_the_daemon(self) -> None:
        fifo = f"/dev/shm/{os.getpid()}"
        os.mkfifo(fifo)
        self.addCleanup(os.unlink, fifo)
        for source, target in ((fifo, fifo), ("/dev/zero", fifo)):
            self.assertRaises(HostActionFailed, self.helper.copy_block, source, target, 0, MIB)

    def test_a_refusal_crosses_with_its_words(self) -> None:
        error = self.assertRaises(HostActionFailed, self.helper.unbind, self.vf.address, "no-such-driver")
        self.assertIn("no-such-driver", str(error))


class RefusedTest(DaemonTest):
    def setUp(self) -> None:
        refused = PermissionError(1, "Operation not permitted", "/dev/kmsg")
        self.useFixture(fixtures.MockPatchObject(Privileged, "kernel_log", side_effect=refused))  # of the daemon, too
        super().setUp()

    def test_a_refusal_of_the_kernel_is_told_with_the_action(self) -> None:
        for _ in range(2):
            error = self.assertRaises(HostActionFailed, self.helper.kernel_log)
            self.assertIn("kernel_log failed: [Errno 1] Operation not permitted: '/dev/kmsg'", str(error))
