# SPDX-License-Identifier: Apache-2.0
"""One renaming in the datastore decides which node has a VM."""

import itertools
from pathlib import Path
from unittest import mock

import fixtures
import testtools

from onedock import imageref, rootowner
from onedock.imageref import ImageRef
from onedriver.errors import BadInput, DriverError
from onedriver.node import vmlock

ONE, TWO, THREE = (f"sha256:{digit * 64}" for digit in "123")


class OwnerTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.base = Path(self.useFixture(fixtures.TempDir()).path)
        self.file = self.base / "0/1/disk.0"
        self.file.parent.mkdir(parents=True)
        imageref.write(self.file, ImageRef(ONE, "docker://tool:1"))

    def on(self, node: str) -> "mock._patch[object]":
        return mock.patch.object(rootowner, "own_node", lambda: node)

    def offered(self) -> None:
        with self.on("node1"):
            rootowner.claim(self.file)
            rootowner.offer(self.file, ImageRef(TWO, "docker://tool:1", "disk.0.tar", 1, "node2"))

    def test_destination_that_takes_it_has_the_complete_disk(self) -> None:
        self.offered()
        with self.on("node2"):
            rootowner.take(self.file)
        self.assertEqual(ImageRef(TWO, "docker://tool:1", "disk.0.tar", 1, "node2"), rootowner.read(self.file))
        with self.on("node1"):
            self.assertEqual("node2", rootowner.withdraw(self.file))
            error = self.assertRaises(DriverError, rootowner.require_here, self.file, rootowner.read(self.file))
            self.assertIn("node2", str(error))

    def test_offer_that_was_withdrawn_cannot_be_taken(self) -> None:
        self.offered()
        with self.on("node1"):
            for _ in range(2):
                self.assertEqual("node1", rootowner.withdraw(self.file))
        with self.on("node2"):
            self.assertRaises(BadInput, rootowner.take, self.file)
        self.assertEqual(ONE, rootowner.read(self.file).image)

    def test_offer_that_is_withdrawn_while_it_is_taken(self) -> None:
        self.offered()
        with self.on("node2"), mock.patch.object(rootowner, "read", side_effect=self.withdrawing):
            error = self.assertRaises(DriverError, rootowner.take, self.file)
        self.assertIn("no longer offered", str(error))
        self.assertEqual("node1", rootowner.read(self.file).node)

    def withdrawing(self, file: Path) -> ImageRef:
        found = imageref.read(file)
        file.unlink()
        return found

    def test_offer_to_another_node_cannot_be_taken(self) -> None:
        self.offered()
        with self.on("node3"):
            self.assertIn("another node", str(self.assertRaises(DriverError, rootowner.take, self.file)))

    def test_node_that_cannot_be_read_has_it_not(self) -> None:
        for node in ("", "a b", "n" * 65, "node/1", 5):
            self.file.write_text(imageref.text(ImageRef(ONE, "docker://tool:1")).replace(
                "}", f', "node": {node if isinstance(node, int) else chr(34) + node + chr(34)}}}'))
            self.assertRaises(BadInput, rootowner.withdraw, self.file)

    def test_container_is_older_than_a_disk_that_another_one_wrote(self) -> None:
        state = self.base / "state"
        rootowner.require_newest(state, 1, TWO)  # of a container of an earlier release nothing is known
        rootowner.accept(state, 1, ONE, THREE)
        for image in (ONE, THREE):
            rootowner.require_newest(state, 1, image)
        error = self.assertRaises(DriverError, rootowner.require_newest, state, 1, TWO)
        self.assertIn("`onedock drop 1`", str(error))
        (state / "one-1" / rootowner.LEFT).touch()
        rootowner.require_newest(state, 1, TWO)

    def test_interrupted_moves_are_those_whose_vm_no_process_works_on(self) -> None:
        state = self.base / "state"
        for number in itertools.chain((1, 2), ("x",)):
            (state / f"one-{number}").mkdir(parents=True)
            (state / f"one-{number}" / rootowner.MOVING).touch()
        self.assertEqual({1, 2}, set(rootowner.interrupted(state)))
        with vmlock.held(state, 1, 0), mock.patch.object(vmlock, "is_held", lambda state, vm_id: vm_id == 1):
            self.assertEqual((2,), rootowner.interrupted(state))
