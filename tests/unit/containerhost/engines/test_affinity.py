# SPDX-License-Identifier: Apache-2.0
import contextlib
import itertools
from collections.abc import Sequence

import testtools
from hypothesis import given, settings
from hypothesis import strategies as st

from containerhost.engines import affinity
from containerhost.engines.affinity import Binding, Request
from containerhost.errors import SpecError, UnsupportedOnHost
from containerhost.inventory.topology import CpuInfo, NumaNode, Topology
from hpcplan.affinity import Affinity
from tests import levels

CPU = CpuInfo("x86_64", None, None, 2, 1, 1, frozenset())


def node(number: int, siblings: Sequence[Sequence[int]], socket: int | None = None, memory: int = 1,
         distances: Sequence[int] = ()) -> NumaNode:
    cores = tuple(frozenset(core) for core in siblings)
    return NumaNode(number, frozenset[int]().union(*cores), cores, number if socket is None else socket, memory, memory,
                    {}, tuple(distances))


def smt(first: int, count: int, offset: int) -> list[tuple[int, int]]:
    """Hardware cores whose second threads are numbered after the first threads of all cores, as on x86."""
    return [(core, core + offset) for core in range(first, first + count)]


TWO = Topology((node(0, smt(0, 4, 8)), node(1, smt(4, 4, 8))), CPU)  # socket 0: 0-3,8-11; socket 1: 4-7,12-15


def place(kind: Affinity, count: int, host: Topology = TWO, taken: Sequence[int] = (), reserved: Sequence[int] = (),
          **more: object) -> Binding:
    return affinity.place(host, host.cpus - set(reserved), taken, Request(kind, count, **more))  # type: ignore[arg-type]


class PlaceTest(testtools.TestCase):
    def test_any_binds_nothing(self) -> None:
        self.assertEqual(Binding(), place(Affinity.ANY, 4))

    def test_cpu_takes_an_equal_share_of_every_socket_and_any_memory(self) -> None:
        self.assertEqual(Binding(frozenset({0, 8, 4, 12})), place(Affinity.CPU, 4))

    def test_cpu_takes_the_rest_where_most_is_free(self) -> None:
        cores = place(Affinity.CPU, 5, taken=[0, 8]).cores
        self.assertEqual((2, 3), (len(cores & TWO.nodes[0].cpus), len(cores & TWO.nodes[1].cpus)))

    def test_cpumem_takes_whole_hardware_cores_and_memory_of_one_node(self) -> None:
        self.assertEqual(Binding(frozenset({0, 8, 1, 9}), frozenset({0})), place(Affinity.CPUMEM, 4))

    def test_cpumem_prefers_the_node_of_the_devices(self) -> None:
        self.assertEqual(frozenset({1}), place(Affinity.CPUMEM, 4, near=(1, 0, 1)).nodes)

    def test_cpumem_prefers_the_node_with_the_least_room(self) -> None:
        self.assertEqual(frozenset({1}), place(Affinity.CPUMEM, 2, taken=[4, 12]).nodes)

    def test_cpumem_leaves_the_node_of_the_devices_when_it_is_full(self) -> None:
        self.assertEqual(frozenset({1}), place(Affinity.CPUMEM, 4, taken=range(3), near=(0,),
                                               reserved=[8, 9, 10]).nodes)

    def test_odd_thread_comes_from_a_core_that_is_shared_already(self) -> None:
        self.assertEqual(frozenset({1, 9, 8}), place(Affinity.CPUMEM, 3, taken=[0]).cores)

    def test_even_request_takes_hardware_cores_with_all_their_threads(self) -> None:
        host = Topology((node(0, [(0, 1), (2, 3)]),), CPU)
        self.assertEqual(frozenset({2, 3}), place(Affinity.CPUMEM, 2, host, reserved=[1]).cores)
        self.assertEqual(frozenset({0}), place(Affinity.CPUMEM, 1, host, reserved=[1]).cores)

    def test_reserved_cores_are_not_used(self) -> None:
        self.assertEqual(frozenset({2, 10, 3, 11}), place(Affinity.CPUMEM, 4, reserved=[0, 1, 8, 9]).cores)

    def test_cpumem_takes_a_socket_of_several_nodes_if_no_node_has_room(self) -> None:
        host = Topology((node(0, [[0], [1]], 0), node(1, [[2], [3]], 0), node(2, [[4], [5]], 1)), CPU)
        self.assertEqual(Binding(frozenset({0, 1, 2}), frozenset({0, 1})), place(Affinity.CPUMEM, 3, host))

    def test_memory_of_a_node_without_memory_comes_from_the_nearest(self) -> None:
        host = Topology((node(0, [[0]], memory=1, distances=(10, 40, 40)), node(1, [[1]], memory=1),
                         node(2, [[2], [3]], memory=0, distances=(40, 20, 10))), CPU)
        self.assertEqual(Binding(frozenset({2, 3}), frozenset({1})), place(Affinity.CPUMEM, 2, host))

    def test_pin_binds_each_rank_to_a_hardware_core(self) -> None:
        bound = place(Affinity.CPUMEMPIN, 4, ranks=2).ranks
        self.assertEqual((frozenset({0, 8}), frozenset({1, 9})), bound)

    def test_pin_binds_a_rank_to_each_thread_by_default(self) -> None:
        self.assertEqual([{0}, {8}, {1}, {9}], list(place(Affinity.CPUMEMPIN, 4).ranks))

    def test_pin_of_more_ranks_than_cores_is_that_of_the_thesis(self) -> None:
        """Rank j, from 1, is on core ceil(j/r), for r ranks per core."""
        host = Topology((node(0, [[number] for number in range(4)]),), CPU)
        bound = place(Affinity.CPUMEMPIN, 4, host, ranks=8).ranks
        self.assertEqual([{0}, {0}, {1}, {1}, {2}, {2}, {3}, {3}], list(bound))

    def test_equal_containers_are_those_of_the_thesis(self) -> None:
        """Section 3.4.2 with P=4, two sockets, four containers of two cores."""
        host = Topology((node(0, [[0], [1], [2], [3]]), node(1, [[4], [5], [6], [7]])), CPU)
        taken: set[int] = set()
        found = []
        for _ in range(4):
            cores = place(Affinity.CPUMEM, 2, host, taken=sorted(taken)).cores
            found.append(sorted(cores))
            taken |= cores
        self.assertEqual([[0, 1], [2, 3], [4, 5], [6, 7]], found)


class RebindTest(testtools.TestCase):
    def rebind(self, count: int, present: Sequence[int], others: Sequence[int] = (), near: tuple[int, ...] = (),
               kind: Affinity = Affinity.CPUMEM) -> Binding:
        return affinity.rebind(TWO, TWO.cpus, others, Request(kind, count, near=near), present)

    def test_cores_stay_if_they_suffice(self) -> None:
        self.assertEqual(frozenset({6, 14}), self.rebind(2, [6, 14]).cores)
        self.assertEqual(frozenset({0, 8, 7, 15}), self.rebind(4, [0, 8, 7, 15], kind=Affinity.CPU).cores)

    def test_smaller_container_keeps_some(self) -> None:
        self.assertEqual(frozenset({6, 14}), self.rebind(2, [6, 14, 7]).cores)

    def test_larger_container_stays_on_its_node(self) -> None:
        self.assertEqual(frozenset({1}), self.rebind(4, [6, 14], others=[4, 0, 8, 1]).nodes)

    def test_larger_container_stays_on_its_node_if_that_of_its_devices_is_full(self) -> None:
        host = Topology((node(0, [(0, 1)], 1), node(1, [(2, 3)], 0), node(2, [(4, 5)], 0)), CPU)
        request = Request(Affinity.CPUMEM, 2, near=(0,))
        self.assertEqual(frozenset({4, 5}), affinity.rebind(host, host.cpus, [0], request, [4]).cores)

    def test_cores_that_do_not_meet_the_request_are_exchanged(self) -> None:
        self.assertEqual(1, len(self.rebind(2, [0, 4]).nodes))
        self.assertEqual(frozenset(), self.rebind(2, [0, 8], others=[0]).cores & {0})

    def test_container_moves_to_the_node_of_its_devices(self) -> None:
        self.assertEqual(frozenset({0}), self.rebind(2, [6, 14], near=(0,)).nodes)
        self.assertEqual(frozenset({6, 14}), self.rebind(2, [6, 14], near=(0, 1)).cores)

    def test_container_stays_if_the_node_of_its_devices_is_full(self) -> None:
        self.assertEqual(frozenset({6, 14}), self.rebind(2, [6, 14], others=[0, 1, 2, 3, 8, 9, 10],
                                                               near=(0,)).cores)


class RefusalTest(testtools.TestCase):
    def test_cpumem_shows_what_each_socket_has(self) -> None:
        error = self.assertRaises(UnsupportedOnHost, place, Affinity.CPUMEM, 6, taken=[0, 8, 1, 4, 12, 5, 13])
        self.assertIn("requested 6 cores on one socket; socket 0 has 5 free of 8, socket 1 has 4 free of 8", str(error))

    def test_cpu_shows_the_shares(self) -> None:
        error = self.assertRaises(UnsupportedOnHost, place, Affinity.CPU, 8, taken=range(4), reserved=[8])
        self.assertIn("equal share of every socket (4+4); socket 0 has 3 free of 7, socket 1 has 8 free of 8",
                      str(error))

    def test_cpu_needs_a_core_of_every_socket(self) -> None:
        self.assertRaises(UnsupportedOnHost, place, Affinity.CPU, 1)

    def test_host_without_allowed_cores(self) -> None:
        for kind in (Affinity.CPU, Affinity.CPUMEM):
            error = self.assertRaises(UnsupportedOnHost, place, kind, 1, reserved=range(16))
            self.assertIn("lets containers use no core", str(error))

    def test_no_cores_or_ranks(self) -> None:
        self.assertRaises(SpecError, place, Affinity.CPUMEM, 0)
        self.assertRaises(SpecError, place, Affinity.CPUMEMPIN, 1, ranks=0)

    def test_unknown_word_is_named_with_its_key(self) -> None:
        error = self.assertRaises(SpecError, affinity.parse, "socket", "hpc:affinity")
        self.assertEqual("hpc:affinity is 'socket', but must be one of any, cpu, cpumem, cpumempin", str(error))

    def test_word_in_capitals_is_known(self) -> None:
        self.assertEqual(Affinity.CPUMEM, affinity.parse("CPUMEM", "HPC/AFFINITY"))


@st.composite
def hosts(draw: st.DrawFn) -> Topology:
    """Hosts with any core ids, hardware cores of one to four threads, uneven nodes, sockets of one or more nodes, and
    nodes without memory."""
    sizes = draw(st.lists(st.lists(st.integers(1, 4), min_size=0, max_size=5), min_size=1, max_size=5))
    ids = iter(draw(st.permutations(range(2 * sum(map(sum, sizes)) + 1))))
    nodes = []
    for number, cores in enumerate(sizes):
        siblings = [[next(ids) for _ in range(threads)] for threads in cores]
        distances = [10 if other == number else draw(st.integers(11, 40)) for other in range(len(sizes))]
        nodes.append(node(number, siblings, draw(st.integers(0, 2)), draw(st.integers(0, 1)), distances))
    return Topology(tuple(nodes), CPU)


class InvariantsTest(testtools.TestCase):
    @given(host=hosts(), data=st.data())
    @settings(max_examples=levels.budget(gate=40, exhaustive=100), deadline=None)
    def test_bindings_are_disjoint_complete_on_allowed_cores_and_memory_follows(self, host: Topology,
                                                                               data: st.DataObject) -> None:
        allowed = data.draw(st.frozensets(st.sampled_from(sorted(host.cpus)))) if host.cpus else frozenset()
        requests = data.draw(st.lists(st.builds(
            Request, st.sampled_from([Affinity.CPU, Affinity.CPUMEM, Affinity.CPUMEMPIN]), st.integers(1, 6),
            st.none() | st.integers(1, 8), st.lists(st.integers(0, 4), max_size=3).map(tuple)), max_size=6))
        taken: frozenset[int] = frozenset()
        for request in requests:
            free = allowed - taken
            try:
                binding = affinity.place(host, allowed, taken, request)
            except UnsupportedOnHost:
                self.assertFalse(fits(host, allowed, free, request), (request, free))
                continue
            self.assertEqual(request.count, len(binding.cores))
            self.assertLessEqual(binding.cores, free)
            taken |= binding.cores
            if request.affinity is Affinity.CPU:
                self.assertEqual(frozenset(), binding.nodes)
                self.assert_equal_shares(host, allowed, binding.cores)
                continue
            self.assert_in_one_socket(host, binding.cores)
            self.assertEqual(affinity.memory_nodes(host, binding.cores), binding.nodes)
            if any(each.memory for each in host.nodes):
                self.assertTrue(all(host.nodes[number].memory for number in binding.nodes))
            if request.affinity is Affinity.CPUMEMPIN:
                self.assert_ranks(binding, request)

    @given(host=hosts(), data=st.data())
    @settings(max_examples=levels.budget(gate=40, exhaustive=100), deadline=None)
    def test_container_can_go_back_whatever_others_took(self, host: Topology, data: st.DataObject) -> None:
        kinds = st.sampled_from([Affinity.CPU, Affinity.CPUMEM, Affinity.CPUMEMPIN])
        requests = st.builds(Request, kinds, st.integers(1, 6), near=st.lists(st.integers(0, 4), max_size=2).map(tuple))
        before = data.draw(requests)
        try:
            had = affinity.place(host, host.cpus, (), before).cores
            has = affinity.rebind(host, host.cpus, (), data.draw(requests), had).cores
        except UnsupportedOnHost:
            return
        others = data.draw(st.frozensets(st.sampled_from(sorted(host.cpus)))) - had - has
        binding = affinity.rebind(host, host.cpus, others, before, has, had | has)
        self.assertEqual(before.count, len(binding.cores))
        self.assertEqual(frozenset(), binding.cores & others)

    def assert_equal_shares(self, host: Topology, allowed: frozenset[int], cores: frozenset[int]) -> None:
        shares = [len(cores & of) for of in sockets(host, allowed)]
        self.assertLessEqual(max(shares) - min(shares), 1)

    def assert_in_one_socket(self, host: Topology, cores: frozenset[int]) -> None:
        self.assertEqual(1, len({each.socket for each in host.nodes if each.cpus & cores}))

    def assert_ranks(self, binding: Binding, request: Request) -> None:
        count = request.ranks or request.count
        self.assertEqual(count, len(binding.ranks))
        self.assertEqual(binding.cores, frozenset[int]().union(*binding.ranks))
        if count <= request.count:
            self.assertTrue(all(one.isdisjoint(other) for one, other in itertools.combinations(binding.ranks, 2)))

    @given(sizes=st.lists(st.integers(0, 8), min_size=1, max_size=4), counts=st.lists(st.integers(1, 8), max_size=6))
    @settings(max_examples=levels.budget(gate=24, exhaustive=60), deadline=None)
    def test_containers_of_whole_hardware_cores_never_share_one(self, sizes: list[int], counts: list[int]) -> None:
        firsts = [sum(sizes[:at]) for at in range(len(sizes))]
        host = Topology(tuple(node(at, smt(firsts[at], size, 100)) for at, size in enumerate(sizes)), CPU)
        taken: frozenset[int] = frozenset()
        for count in counts:
            with contextlib.suppress(UnsupportedOnHost):
                cores = affinity.place(host, host.cpus, taken, Request(Affinity.CPUMEM, 2 * count)).cores
                taken |= cores
                self.assertEqual(count, len({core % 100 for core in cores}))


def sockets(host: Topology, allowed: frozenset[int]) -> list[frozenset[int]]:
    found: dict[int | None, frozenset[int]] = {}
    for each in host.nodes:
        found[each.socket] = found.get(each.socket, frozenset()) | (each.cpus & allowed)
    return [of for of in found.values() if of]


def fits(host: Topology, allowed: frozenset[int], free: frozenset[int], request: Request) -> bool:
    """Return whether the request could be met, found by counting."""
    room = [len(of & free) for of in sockets(host, allowed)]
    if request.affinity is not Affinity.CPU:
        return any(has >= request.count for has in room)
    if not room or request.count < len(room):
        return False
    shares = sorted(request.count // len(room) + (at < request.count % len(room)) for at in range(len(room)))
    return all(has >= share for has, share in zip(sorted(room), shares, strict=True))
