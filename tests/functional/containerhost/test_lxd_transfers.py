# SPDX-License-Identifier: Apache-2.0
"""Containers that go from one real daemon to another while they run: two of Incus, and what LXD 5.0.2 says."""

import dataclasses
import subprocess
from pathlib import Path
from typing import Any

from containerhost import errors
from containerhost.engines.capabilities import ChangesOffer
from containerhost.engines.contract import Status
from containerhost.engines.lxd.migration import SNAPSHOT, Transfers
from containerhost.engines.lxd.pooldisks import PoolDisks
from containerhost.engines.spec import ContainerSpec, Cpu, Memory, RootDisk
from tests.conformance.engine import frame
from tests.conformance.engine.frame import MiB
from tests.functional import lxd
from tests.functional.containerhost.base import LxdTestCase
from tests.ports import free_port

SUMS = "cd /root && find . -type f | sort | xargs sha256sum && find . | sort | xargs stat -c '%n %a %u %g %s'"
TIMEOUT = 120  # s


class Host:
    """One side: a daemon with its transfers."""

    def __init__(self, daemon: lxd.Lxd) -> None:
        self.lxd, self.engine = daemon, daemon.engine
        self.transfers = Transfers(self.engine.client, self.engine.make)

    def listen(self) -> str:
        address = f"127.0.0.1:{free_port()}"
        self.engine.client.request("patch", asked="listen", json={"config": {"core.https_address": address}})
        return f"https://{address}"

    def snapshots(self) -> list[str]:
        return self.engine.client.get("instances", "c1", "snapshots", asked="look")

    def subvolumes(self) -> list[str]:
        """Return what the daemon has in its pool, but for images."""
        pool = Path(self.lxd.daemon.directory, "storage-pools", lxd.POOL)
        return sorted(f"{kind}/{found.name}" for kind in ("containers", "containers-snapshots")
                      for found in (pool / kind).iterdir())


class RunningTransferTest(frame.EngineFrame):
    def setUp(self) -> None:
        super().setUp()
        self.one, self.two = Host(self.useFixture(lxd.Incus())), Host(self.useFixture(lxd.SecondIncus()))
        self.address = self.one.listen()
        self.one.engine.create(self.spec())
        self.one.engine.start("c1")
        self.make_subvolume("sub")
        self.shell(self.one, "mkdir /root/d; dd if=/dev/urandom of=/root/big bs=1M count=24; echo x > /root/gone; "
                             "echo old > /root/d/changed; chown 1000:100 /root/d/changed; echo 1 > /root/sub/one; sync")

    def spec(self, name: str = "c1", **more: Any) -> ContainerSpec:
        parts: dict[str, Any] = {"image": self.one.lxd.imported(), "cpu": Cpu(1), "memory": Memory(128 * MiB),
                                 "root": RootDisk(lxd.POOL), "labels": {"nova.uuid": "u", "nova.incoming": "7"}}
        return ContainerSpec(name=name, **(parts | more))

    def shell(self, host: Host, script: str) -> bytes:
        done = host.engine.execute("c1", ["sh", "-c", script], b"", timeout=TIMEOUT)
        self.assertEqual(0, done.status, done.stderr)
        return done.stdout

    def make_subvolume(self, name: str) -> None:
        """Make one as programs in containers do, which need a tool for it."""
        root = Path(self.one.lxd.daemon.directory, "storage-pools", lxd.POOL, "containers/c1/rootfs/root")
        subprocess.run(["btrfs", "subvolume", "create", str(root / name)], check=True, capture_output=True)

    def send(self, refresh: bool) -> int:
        """Send one round.

        :returns: bytes that passed between the daemons
        """
        offer = self.one.transfers.offer_changes("c1", self.address)
        self.assertIsNotNone(offer)
        offer = ChangesOffer(**dataclasses.asdict(offer))
        self.assertTrue(self.two.transfers.takes_changes(self.spec(), offer))
        before = received()
        self.two.transfers.fetch_changes(self.spec(memory=Memory(96 * MiB)), offer, TIMEOUT, refresh)
        return received() - before

    def change(self) -> None:
        self.make_subvolume("sub/inner")
        self.make_subvolume("e")
        self.shell(self.one, "rm /root/gone; mv /root/big /root/moved; echo new > /root/d/changed; "
                             "echo 2 > /root/sub/two; echo 3 > /root/sub/inner/a; "
                             "dd if=/dev/urandom of=/root/e/new bs=1M count=1")

    def test_container_that_runs_is_copied_and_only_the_difference_after_its_stop(self) -> None:
        self.assertGreater(self.send(refresh=False), 24 * MiB)
        self.assertEqual(Status.RUNNING, self.one.engine.container("c1").status)
        self.change()
        self.assertLess(self.send(refresh=True), 4 * MiB)
        self.shell(self.one, "echo last > /root/d/last; rm /root/e/new; echo 4 > /root/sub/inner/four")
        sums = self.shell(self.one, SUMS)
        self.one.engine.stop("c1", timeout=TIMEOUT, force=True)
        self.assertLess(self.send(refresh=True), 4 * MiB)
        self.two.transfers.drop_snapshots("c1")
        self.one.transfers.withdraw("c1")
        self.assertEqual((["containers/c1"], ["containers/c1"], [], []),
                         (self.one.subvolumes(), self.two.subvolumes(), self.one.snapshots(), self.two.snapshots()))
        config = self.two.engine.client.instance("c1")[0]["config"]
        self.assertEqual((str(96 * MiB), "7"), (config["limits.memory"], config["user.nova.incoming"]))
        self.two.engine.start("c1")
        self.assertEqual(sums, self.shell(self.two, SUMS))

    def test_each_round_sends_the_difference_to_the_last_one(self) -> None:
        for number in range(1, 5):
            self.shell(self.one, f"dd if=/dev/urandom of=/root/d/{number} bs=1M count=8")
            sent = self.send(refresh=number > 1)
            names = [url.rpartition("/")[2] for url in self.one.snapshots()]
            self.assertEqual([f"{SNAPSHOT}{kept:06}" for kept in range(1, number + 1)], names)
        self.assertLess(sent, 12 * MiB)
        self.assertEqual(len(self.one.snapshots()), len(self.two.snapshots()))

    def test_round_that_fails_leaves_what_can_be_removed(self) -> None:
        self.send(refresh=False)
        offer = self.one.transfers.offer_changes("c1", self.address)
        self.one.transfers.withdraw("c1")
        self.assertRaises(errors.EngineError, self.two.transfers.fetch_changes, self.spec(), offer, TIMEOUT, True)
        self.assertEqual([], self.one.snapshots())
        self.assertEqual(Status.RUNNING, self.one.engine.container("c1").status)
        self.two.engine.delete("c1")
        self.assertEqual(([], ["containers/c1"]), (self.two.subvolumes(), self.one.subvolumes()))

    def test_first_round_that_fails_leaves_nothing(self) -> None:
        offer = self.one.transfers.offer_changes("c1", self.address)
        wrong = dataclasses.replace(offer, secrets={key: "x" for key in offer.secrets})
        self.assertRaises(errors.EngineError, self.two.transfers.fetch_changes, self.spec(), wrong, TIMEOUT, False)
        self.assertEqual(([], ()), (self.two.subvolumes(), self.two.engine.containers()))

    def test_rounds_after_a_killed_caller_begin_anew(self) -> None:
        """Its snapshot is there, and the receiver has nothing."""
        self.one.transfers.offer_changes("c1", self.address)
        self.another_side().withdraw("c1")
        self.assertEqual([], self.one.snapshots())
        self.assertGreater(self.send(refresh=False), 24 * MiB)

    def test_snapshot_that_stayed_is_found_by_the_next_start(self) -> None:
        self.one.transfers.offer_changes("c1", self.address)
        self.another_side().purge({"other"})
        self.assertEqual(1, len(self.one.snapshots()))
        self.another_side().purge({"c1"})
        self.assertEqual([], self.one.snapshots())

    def another_side(self) -> Transfers:
        return Transfers(self.one.engine.client, self.one.engine.make)

    def test_pool_without_differences(self) -> None:
        client = self.two.engine.client
        client.finish(client.request("post", "storage-pools", asked="make a pool",
                                     json={"name": "plain", "driver": "dir", "config": {}}), "make a pool")
        self.addCleanup(client.request, "delete", "storage-pools", "plain", asked="remove the pool")
        offer = self.one.transfers.offer_changes("c1", self.address)
        self.assertFalse(self.two.transfers.takes_changes(self.spec(root=RootDisk("plain")), offer))
        self.assertEqual((), PoolDisks(client, "plain").all())


class WithoutListOfSubvolumesTest(LxdTestCase):
    def test_daemon_that_searches_files_is_not_used(self) -> None:
        transfers = Transfers(self.engine.client, self.engine.make)
        self.engine.create(self.spec())
        if "migration_vm_live" in self.engine.client.extensions:
            self.skipTest("this daemon lists subvolumes")
        self.assertIsNone(transfers.offer_changes("c1", "https://127.0.0.1:1"))
        self.assertEqual([], self.engine.client.get("instances", "c1", "snapshots", asked="look"))


def received() -> int:
    """Return the bytes that the loopback interface has received."""
    lines = Path("/proc/net/dev").read_text(encoding="ascii").splitlines()
    return next(int(line.split(":")[1].split()[0]) for line in lines if line.strip().startswith("lo:"))
