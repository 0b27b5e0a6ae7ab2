# SPDX-License-Identifier: Apache-2.0
import itertools
import json
import time
from collections.abc import Sequence
from typing import Any

import testtools
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from containerhost.devices.model import Role
from containerhost.errors import NoPlacement, SpecError
from containerhost.inventory import devicechoice, freedevices
from containerhost.inventory.devicechoice import Candidate, Choice, Nearness, choose, pairs
from containerhost.inventory.scan import scan
from containerhost.operator.cli import main
from tests import levels
from tests.unit.containerhost.hosts import Broken, shared


def gpu(number: int, switch: int, root: int = 0, node: int = 0) -> Candidate:
    return device(f"g{number}", switch, root, node, True)


def function(number: int, switch: int, root: int = 0, node: int = 0) -> Candidate:
    return device(f"f{number}", switch, root, node, False)


def device(name: str, switch: int, root: int, node: int, is_gpu: bool) -> Candidate:
    return Candidate(name, (f"pci{root}", f"port{root}.{switch}", name), node, is_gpu)


def ids(choice: Choice) -> list[str]:
    return [each.id for each in choice.devices]


class ChooseTest(testtools.TestCase):
    def test_time_of_a_choice_among_many(self) -> None:
        free = [*(gpu(at, at, at // 4, at // 16) for at in range(32)),
                *(function(at, at % 32, at % 32 // 4, at % 32 // 16) for at in range(128))]
        began = time.process_time()
        self.assertEqual(16, len(choose(free, 8, 8).devices))
        self.assertLess(time.process_time() - began, 4)  # usually 0.5; without counts by domain 11

    def test_gpu_and_function_below_one_switch(self) -> None:
        free = [gpu(0, 0), gpu(1, 1), function(0, 1), function(1, 2)]
        found = choose(free, 1, 1)
        self.assertEqual((["g1", "f0"], Nearness.SWITCH), (ids(found), found.nearness))

    def test_below_one_root_before_one_node_before_two(self) -> None:
        root, node, far = function(2, 1), function(1, 0, root=1), function(0, 0, root=2, node=1)
        found = choose([gpu(0, 0), far, node, root], 1, 1)
        self.assertEqual((["g0", "f2"], Nearness.ROOT), (ids(found), found.nearness))
        self.assertEqual(["g0", "f1"], ids(choose([gpu(0, 0), far, node], 1, 1)))
        self.assertEqual(Nearness.HOST, choose([gpu(0, 0), far], 1, 1).nearness)

    def test_odd_requests_leave_pairs_whole(self) -> None:
        free = [gpu(0, 0), function(0, 0), gpu(1, 1), function(2, 2)]
        self.assertEqual(["g1"], ids(choose(free, 1, 0)))
        self.assertEqual(["f2"], ids(choose(free, 0, 1)))

    def test_one_of_several_functions_breaks_no_pair(self) -> None:
        free = [gpu(0, 0), function(0, 0), function(1, 0), gpu(1, 1), function(2, 1)]
        self.assertEqual(["f0"], ids(choose(free, 0, 1)))

    def test_broken_pair_is_told(self) -> None:
        self.assertIn("1 pairs of other devices are broken", choose([gpu(0, 0), function(0, 0)], 1, 0).reason)
        self.assertIn("no pair of a free GPU and a free function is broken",
                      choose([gpu(0, 0), function(0, 1)], 1, 0).reason)

    def test_device_with_the_fewest_free_ones_at_its_root(self) -> None:
        self.assertEqual(["g2"], ids(choose([gpu(0, 0), gpu(1, 1), gpu(2, 0, root=1)], 1, 0)))

    def test_linked_gpus_before_those_below_one_switch(self) -> None:
        free = [gpu(0, 0), gpu(1, 0), gpu(2, 1), gpu(3, 2)]
        links = {frozenset({"g2", "g3"}): 4, frozenset({"g0", "g2"}): 2}
        found = choose(free, 2, 0, links)
        self.assertEqual((["g2", "g3"], 4), (ids(found), found.links))
        self.assertEqual(["g0", "g1"], ids(choose(free, 2, 0)))

    def test_two_pairs_rather_than_two_near_gpus_with_far_functions(self) -> None:
        free = [gpu(0, 0), gpu(1, 0), gpu(2, 1), function(0, 1), gpu(3, 2), function(1, 2)]
        self.assertEqual(["g2", "g3", "f0", "f1"], ids(choose(free, 2, 2)))

    def test_refusals_show_what_is_free(self) -> None:
        error = self.assertRaises(NoPlacement, choose, [gpu(0, 0), function(0, 0)], 2, 1)
        self.assertIn("2 GPUs and 1 network functions are requested; this host has 1 GPUs and 1 network", str(error))
        for wrong in ((0, 0), (-1, 1), (1, -1)):
            self.assertRaises(SpecError, choose, [gpu(0, 0)], *wrong)


class CapturedTest(testtools.TestCase):
    def test_each_gpu_gets_a_function_below_its_switch(self) -> None:
        host = shared("dgx")
        free = freedevices.candidates(scan(host), host, {})
        near = [Nearness.SWITCH, *[Nearness.NODE] * 3, *[Nearness.HOST] * 4]
        for count, nearness in enumerate(near, 1):
            found = choose(free, count, count)
            self.assertEqual((nearness, count, 2 * count),
                             (found.nearness, pairs(found.devices), len(found.devices)))

    def test_free_devices_are_healthy_whole_and_nobodys(self) -> None:
        host = shared("mixed")
        inventory = scan(host)
        for held in ("0000:3b:00.0", "0000:3b:00.0/share0"):  # of the second, the GPU is shared no more
            free = {each.id for each in freedevices.candidates(inventory, host, {held: None})}
            for each in inventory.devices:
                if not each.healthy or each.host_use or each.slice or each.id == "0000:3b:00.0":
                    self.assertNotIn(each.id, free)

    def test_gpu_that_could_have_virtual_functions_is_free_while_it_has_none(self) -> None:
        """As NVIDIA's since Ampere; of a card it would be the functions that are given away."""
        tree = self.useFixture(Broken("small"))
        for address in ("0000:3b:00.0", "0000:af:00.0"):
            (tree.function(address) / "sriov_totalvfs").write_text("16\n")
        (tree.function("0000:af:00.0") / "virtfn0").symlink_to("../0000:af:00.1")
        inventory = scan(tree.host)
        self.assertEqual({Role.PF}, {inventory.get(address).role for address in ("0000:3b:00.0", "0000:af:00.0")})
        free = freedevices.candidates(inventory, tree.host, {})
        self.assertEqual(["0000:3b:00.0"], [each.id for each in free if each.is_gpu])


class CommandTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.root = str(self.useFixture(Broken("small")).root)

    def choose(self, *arguments: str) -> Any:
        return CliRunner().invoke(main, ["choose", "--root", self.root, *arguments])

    def test_the_nearest_pair_and_how_to_ask_for_it(self) -> None:
        result = self.choose("--gpus", "1", "--functions", "1", "--json")
        self.assertEqual(0, result.exit_code, result.output)
        found = json.loads(result.output)
        self.assertEqual(["0000:3b:00.0", "0000:5e:00.1"], [each["id"] for each in found["devices"]])
        self.assertEqual(['PCI=[SHORT_ADDRESS="3b:00.0"]', 'PCI=[SHORT_ADDRESS="5e:00.1"]'], found["opennebula"])
        self.assertIn(f"reason: {found['reason']}", self.choose("--gpus", "1", "--functions", "1").output)

    def test_too_many_and_unknown_ids_are_refused(self) -> None:
        self.assertIn("this host has 2 GPUs", self.choose("--gpus", "3").output)
        self.assertIn("has 0 GPUs", self.choose("--gpus", "1", "--gpu", "10de:ffff").output)
        self.assertEqual(2, self.choose("--gpus", "1", "--gpu", "A100").exit_code)
        self.assertIn("at least one device", self.choose().output)


@st.composite
def trees(draw: st.DrawFn) -> list[Candidate]:
    """PCI trees of up to three roots with up to three ports each."""
    places = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.booleans()), min_size=2, max_size=9))
    return [device(f"{'g' if is_gpu else 'f'}{at}", switch, root, root % 2, is_gpu)
            for at, (root, switch, is_gpu) in enumerate(places)]


class InvariantsTest(testtools.TestCase):
    @given(free=trees(), wanted=st.tuples(st.integers(0, 2), st.integers(0, 2)), seed=st.randoms())
    @settings(max_examples=levels.budget(gate=24, exhaustive=60), deadline=None)
    def test_choice_is_complete_and_does_not_depend_on_the_order(self, free: list[Candidate], wanted: tuple[int, int],
                                                                seed: object) -> None:
        try:
            found = choose(free, *wanted)
        except (NoPlacement, SpecError):
            return
        self.assertEqual(wanted, (sum(each.is_gpu for each in found.devices),
                                  sum(not each.is_gpu for each in found.devices)))
        self.assertEqual(len(found.devices), len(set(found.devices)))
        self.assertLessEqual(set(found.devices), set(free))
        self.assertEqual(found, choose(free[::-1], *wanted))

    @given(free=trees())
    @settings(max_examples=levels.budget(gate=24, exhaustive=60), deadline=None)
    def test_one_of_each_is_as_near_as_any(self, free: list[Candidate]) -> None:
        sets = [(one, other) for one, other in itertools.product(free, free) if one.is_gpu and not other.is_gpu]
        if sets:
            self.assertEqual(min(map(devicechoice.nearness, sets)), choose(free, 1, 1).nearness)

    @given(free=trees(), is_gpu=st.booleans())
    @settings(max_examples=levels.budget(gate=24, exhaustive=60), deadline=None)
    def test_one_alone_breaks_a_pair_only_if_each_does(self, free: list[Candidate], is_gpu: bool) -> None:
        kind = [each for each in free if each.is_gpu == is_gpu]
        if kind:
            (found,) = choose(free, int(is_gpu), int(not is_gpu)).devices
            self.assertEqual(max(pairs(without(free, each)) for each in kind), pairs(without(free, found)))


def without(free: Sequence[Candidate], gone: Candidate) -> list[Candidate]:
    return [each for each in free if each != gone]
