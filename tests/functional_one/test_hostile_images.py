# SPDX-License-Identifier: Apache-2.0
"""Root disks that attack the node, from the deployment to the container's end."""

import io
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import fixtures

from tests import hostileimages, levels
from tests.functional_one import diskfiles
from tests.functional_one.test_actions import BOOT, CLEANUP, ActionsCase
from tests.functional_one.vms import Machine

SECRET = "architecture: secret\ncreation_date: 5\n"
HOLE = 1 << 40  # bytes


class HostileRootsTest(ActionsCase):
    def setUp(self) -> None:
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)
        self.victim = self.directory / "host" / "victim"
        self.victim.parent.mkdir()
        self.victim.write_text(SECRET)
        self.good = self.node.lxd.images["unified"]

    def attack(self, content: bytes) -> None:
        machine, disk = Machine(), self.directory / "disk"
        disk.write_bytes(content)
        self.node.give_disk(machine, disk)
        deployed = self.node.act("deploy", machine, lcm=BOOT)
        if deployed.status == 0:
            self.addCleanup(self.ok, "cancel", machine, lcm=CLEANUP)
            self.assertIn("No such file", self.inside(machine, "cat", "/etc/read"))
        else:
            self.assertIn("cannot be used: it", deployed.reason)
        self.assertEqual(SECRET, self.victim.read_text(), "the node's file was written")
        self.assertEqual([self.victim], list(self.victim.parent.iterdir()), "a file of the node is new")

    def test_a_far_date_in_one_of_two_metadata_files_leaves_the_store_readable(self) -> None:
        machine, disk = Machine(), self.directory / "disk"
        disk.write_bytes(hostileimages.dated(self.good))
        self.node.give_disk(machine, disk)
        self.refused("twice", "deploy", machine, lcm=BOOT)
        self.assertEqual([], self.engine.client.images())

    def test_device_nodes_are_left_out(self) -> None:
        machine, disk = Machine(), self.directory / "disk"
        disk.write_bytes(hostileimages.devices(self.good))
        self.node.give_disk(machine, disk)
        self.ok("deploy", machine, lcm=BOOT)
        self.addCleanup(self.ok, "cancel", machine, lcm=CLEANUP)
        self.assertEqual("", self.inside(machine, "ls", "/root"))

    def test_a_hole_larger_than_the_node_is_refused(self) -> None:
        tree = diskfiles.tree(self.good, self.directory)
        with (tree / "root/hole").open("wb") as file:
            file.write(b"begin")
            os.truncate(file.fileno(), HOLE)
        machine = Machine()
        self.node.give_disk(machine, diskfiles.ext4(tree, self.directory / "ext4"))
        self.refused("its sparse files have holes of ", "deploy", machine, lcm=BOOT)
        self.assertEqual([], self.engine.client.images())

    def test_a_bomb_is_unpacked_up_to_the_disks_size_and_the_nodes_limit(self) -> None:
        self.node.configure("unpacked_limit = 1\n")
        machine = Machine()
        self.node.give_disk(machine, self.bomb(1280))
        self.refused(f"{1280 << 20} are allowed; SIZE of the disk and unpacked_limit of /etc/lxdone.toml", "deploy",
                     machine, lcm=BOOT)
        self.assertEqual([], self.engine.client.images())

    def bomb(self, size: int) -> Path:
        """A small file that unpacks to more than ``size`` MiB."""
        head = tarfile.TarInfo("usr/bomb")
        head.size = size << 20
        bomb = self.directory / "bomb"
        with bomb.open("wb") as file, subprocess.Popen(["zstd", "-1", "-q"], stdin=subprocess.PIPE,
                                                       stdout=file) as packing, packing.stdin as pipe:
            pipe.write(head.tobuf())
            for _ in range(size):
                pipe.write(bytes(1 << 20))
            with tarfile.open(fileobj=pipe, mode="w|") as archive:
                archive.addfile(tarfile.TarInfo("usr/end"), io.BytesIO())
        return bomb


def test_of(name: str) -> Any:
    def test(self: HostileRootsTest) -> None:
        build = hostileimages.ATTACKS[name]
        self.attack(build(hostileimages.Builder(self.good), str(self.victim)).done())
    return test


ATTACKS = levels.some("hostile images of lxdone", tuple(hostileimages.ATTACKS), range(1, len(hostileimages.ATTACKS), 2))
for attack in ATTACKS:
    setattr(HostileRootsTest, f"test_no_way_out_by_{attack.replace(' ', '_')}", test_of(attack))
