# SPDX-License-Identifier: Apache-2.0
import collections
import dataclasses
from typing import Any

import testtools

from containerhost.allocation.store import Allocation, Consumer
from containerhost.errors import DeviceHeld
from nova_lxd_ext.hardware import slices
from nova_lxd_ext.hardware.sliceproviders import Need
from tests.unit.nova.migkit import GPU_A, GPU_B, LARGE, SMALL, gpu, host, part

ME, OTHER = Consumer("nova", "lxd", "c1", "u1"), Consumer("nova", "lxd", "c2", "u2")
ONE_D = Consumer("lxdone", "lxd", "one-7", "7")
FIRST, SECOND, BIG, FAR = (f"{GPU_A}/gi1/ci0", f"{GPU_A}/gi2/ci0", f"{GPU_A}/gi5/ci0", f"{GPU_B}/gi7/ci0")


def records(held: dict[str, Consumer], blocked: str = "") -> dict[str, Allocation]:
    return {name: Allocation(name, owner, blocked="dirty" if name == blocked else None) for name, owner in held.items()}


class ChooseTest(testtools.TestCase):
    def choose(self, *needs: Need, held: Any = None, inventory: Any = None) -> tuple[str, ...]:
        return slices.choose(needs, inventory or host(), records(held or {}), ME)

    def test_of_that_profile_on_that_gpu(self) -> None:
        self.assertEqual((FIRST,), self.choose(Need(GPU_A, SMALL, 1)))
        self.assertEqual((FAR,), self.choose(Need(GPU_B, SMALL, 1)))
        self.assertEqual((BIG, FIRST, SECOND), self.choose(Need(GPU_A, LARGE, 1), Need(GPU_A, SMALL, 2)))

    def test_what_the_server_holds_comes_first(self) -> None:
        self.assertEqual((SECOND,), self.choose(Need(GPU_A, SMALL, 1), held={SECOND: ME}))
        self.assertEqual((FIRST, SECOND), self.choose(Need(GPU_A, SMALL, 2), held={SECOND: ME}))

    def test_anothers_is_left_alone(self) -> None:
        for holder in (OTHER, ONE_D):
            self.assertEqual((SECOND,), self.choose(Need(GPU_A, SMALL, 1), held={FIRST: holder}))

    def test_a_broken_one_is_left_alone(self) -> None:
        inventory = host(gpu(GPU_A), part(GPU_A, 1, health=("gone",)), part(GPU_A, 2))
        self.assertEqual((SECOND,), self.choose(Need(GPU_A, SMALL, 1), inventory=inventory))

    def test_more_than_there_are_is_refused_with_the_numbers(self) -> None:
        for held in ({FIRST: OTHER}, {GPU_A: ONE_D}):
            error = self.assertRaises(DeviceHeld, self.choose, Need(GPU_A, SMALL, 2), held=held)
            self.assertIn(f"2 slices {SMALL} of GPU {GPU_A}", str(error))
            self.assertIn("of 2 are available", str(error))


class UnusableTest(testtools.TestCase):
    def test_what_placement_must_not_give_away(self) -> None:
        """Map allocations to the slices to reserve. What a server of nova has is counted as used already."""
        for held, blocked, expected in (
                ({}, "", set()), ({FIRST: ME}, "", set()), ({FIRST: ONE_D}, "", {FIRST}), ({FIRST: ME}, FIRST, {FIRST}),
                ({GPU_A: OTHER}, "", {FIRST, SECOND, BIG}), ({GPU_B: ONE_D}, "", {FAR})):
            self.assertEqual(expected, slices.unusable(host(), records(held, blocked)), (held, blocked))

    def test_broken_ones(self) -> None:
        broken = tuple(dataclasses.replace(device, health=("gone",)) for device in host().devices)
        self.assertEqual({SECOND, BIG, FAR}, slices.unusable(host(*broken), records({FIRST: ME})))


class HeldTest(testtools.TestCase):
    def test_slices_only_and_the_servers_only(self) -> None:
        self.assertEqual((FIRST, BIG), slices.held(records({BIG: ME, FIRST: ME, SECOND: OTHER, GPU_B: ME}), ME))

    def test_do_they_satisfy_the_flavor(self) -> None:
        for names, asked, expected in (
                ((FIRST,), {SMALL: 1}, True), ((FIRST,), {LARGE: 1}, False), ((FIRST, BIG), {SMALL: 1, LARGE: 1}, True),
                ((FIRST, SECOND), {SMALL: 1, LARGE: 1}, False), ((FIRST,), {SMALL: 2}, False), ((), {SMALL: 1}, False),
                # The GPU fell off the bus: what its slices were is unknown.
                (("0000:99:00.0/gi1/ci0",), {SMALL: 1}, True)):
            self.assertEqual(expected, slices.satisfy(names, collections.Counter(asked), host()), (names, asked))
