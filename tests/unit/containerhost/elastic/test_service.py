# SPDX-License-Identifier: Apache-2.0
"""Rounds of the service: who gets what when, and what others do meanwhile."""

import json
from collections.abc import Callable
from unittest import mock

from containerhost import errors
from containerhost.elastic.service import Service
from containerhost.engines import bounds
from containerhost.engines.capabilities import Size
from containerhost.engines.contract import Status
from containerhost.engines.resizelock import resizing
from containerhost.guest import resources
from tests.unit.containerhost.elastic.fakes import GiB, MiB, World
from tests.unit.containerhost.elastic.servicecase import ServiceCase


class RoundTest(ServiceCase):
    def test_cores_are_divided_and_come_to_rest(self) -> None:
        self.share_cores()
        self.assert_settled(a=2, b=2)
        self.engine.asked.clear()
        self.world.rounds(self.world.service(), 3)
        self.assertEqual([("measured",)] * 3, self.engine.asked)

    def test_those_that_did_not_opt_in_are_never_touched(self) -> None:
        own = self.engine.add("own", None, own_cores=frozenset({0, 1}))
        plain, stopped = self.engine.add("plain", None), self.engine.add("off", (1, 4), status=Status.STOPPED)
        self.share_cores()
        for other in (own, plain, stopped):
            self.assertEqual((None, 1), (other.size, other.version))
        self.assertEqual({2, 3}, set().union(*self.world.cores().values()))

    def test_cores_that_another_gets_for_itself_are_left(self) -> None:
        self.share_cores()
        self.engine.add("own", None, own_cores=frozenset({0, 1}))
        self.world.rounds(self.world.service(), 3)
        self.assertEqual({2, 3}, set().union(*self.world.cores().values()))
        self.assert_settled(a=1, b=1)

    def test_host_loses_cores_and_gets_them_back(self) -> None:
        self.share_cores()
        service = self.world.service()
        for cores, each in ((2, 1), (4, 2)):
            self.world.set_cores(cores)
            self.world.rounds(service, 3)
            self.assert_settled(a=each, b=each)
        self.world.set_cores(1)  # fewer than the least of both
        self.world.rounds(service, 3)
        self.assertEqual({"a": {0}, "b": {0}}, self.world.cores())

    def test_frozen_ones_that_had_all_cores_divide_them_when_they_go_on(self) -> None:
        service, both = self.world.service(), [self.engine.add(name, (1, 4)) for name in ("a", "b")]
        for working, frozen in (both, both[::-1]):
            working.status, frozen.status = Status.RUNNING, Status.FROZEN
            self.world.rounds(service, 3)
        self.assertEqual({"a": 4, "b": 4}, {each: len(cores) for each, cores in self.world.cores().items()})
        for each in both:
            each.status = Status.RUNNING
        self.world.rounds(service, 3)
        self.assert_settled(a=2, b=2)

    def test_containers_whose_permitted_cores_are_exchanged_do_not_wait_for_each_other(self) -> None:
        service = self.world.service()
        self.world.set_cores(2)
        for name, core in (("a", 0), ("b", 1)):
            self.engine.add(name, (1, 1), choice=frozenset({core}))
        self.world.rounds(service, 2)
        self.assertEqual({"a": {0}, "b": {1}}, self.world.cores())
        a, b = (self.engine.containers_[name] for name in "ab")
        a.labels[bounds.LABEL], b.labels[bounds.LABEL] = b.labels[bounds.LABEL], a.labels[bounds.LABEL]
        self.world.rounds(service, 3)
        self.assertEqual({"a": {1}, "b": {0}}, self.world.cores())

    def test_where_minima_do_not_fit_on_a_node_the_other_one_waits_for_what_is_given_up(self) -> None:
        """Cores 0 and 1 are too few for three containers; on 2 and 3 a guest that listens shrinks for another."""
        self.world.engine.check = self.require_free
        self.engine.add("old", (1, 2), choice=frozenset({2, 3}))
        service = self.world.service()
        self.world.rounds(service, 2)
        self.files.listening.add("old")
        self.files.acknowledge("old", 1)
        for name in "abc":
            self.engine.add(name, (1, 1), choice=frozenset({0, 1}))
        self.engine.add("new", (1, 2), choice=frozenset({2, 3}))
        self.world.rounds(service)
        self.assertEqual({2, 3}, self.world.cores()["old"])
        self.world.rounds(service, 8)
        self.assertEqual([1, 1], [len(self.world.cores()[name]) for name in ("old", "new")])

    def require_free(self, name: str, size: Size) -> None:
        taken = self.world.cores().get("old", set())
        self.assertFalse(name == "new" and size.cores & taken, taken)

    def test_container_that_ends_leaves_its_cores(self) -> None:
        self.share_cores()
        service = self.world.service()
        self.engine.containers_["b"].status = Status.STOPPED
        self.world.rounds(service, 2)
        self.assertEqual(4, self.world.counts()["a"])

    def test_reserved_and_permitted_cores(self) -> None:
        self.engine.add("a", (1, 4), choice=frozenset({0, 1}))
        self.world.rounds(self.world.service(reserved=frozenset({0})), 2)
        self.assertEqual({"a": {1}}, self.world.cores())

    def test_a_started_container_is_told_what_it_has(self) -> None:
        self.share_cores()
        service = self.world.service()
        self.world.rounds(service)
        self.files.files.clear()
        self.world.rounds(service)
        self.assertEqual({}, self.files.files)
        self.engine.containers_["a"].pid = 7
        self.world.rounds(service)
        self.assertEqual(2, self.files.document("a")["cpus"]["count"])

    def test_container_whose_init_mounts_something_over_the_document_is_told_again(self) -> None:
        self.share_cores()
        service = self.world.service()
        self.world.rounds(service)
        pid = self.engine.containers_["a"].pid
        for uptime, expected in ((50, {"a"}), (500, set())):
            self.world.write("proc/uptime", f"{uptime}.00 0.00\n")
            self.world.write(f"proc/{pid}/stat", f"{pid} (init) S {' '.join(['0'] * 18)} 1000 0 0\n")
            self.files.files.clear()
            self.world.rounds(service)
            self.assertEqual(expected, {name for name, _ in self.files.files})

    def test_engine_that_does_not_answer_changes_nothing(self) -> None:
        self.share_cores()
        service = self.world.service()
        before = self.world.cores()

        def fails() -> tuple[()]:
            raise errors.EngineUnavailable("it restarts")

        self.engine.measured = fails  # type: ignore[method-assign]
        self.assertRaises(errors.EngineUnavailable, service.round)
        self.assertEqual(before, self.world.cores())

    def test_plan_changes_nothing(self) -> None:
        self.engine.add("a", (1, 4))
        (row,) = self.world.service().plan()
        self.assertEqual(("fake/a", 4, [], None), (row["container"], row["wanted"], row["cores"],
                                                   self.engine.containers_["a"].size))
        self.assertFalse((self.directory / "state").exists())

    def test_first_round_begins_at_once(self) -> None:
        service, stop = self.world.service(), mock.Mock()
        stop.is_set.side_effect = [False, True]
        self.engine.add("a", (1, 4))
        service.run(stop, 60)
        self.assertEqual([("measured",)], [call for call in self.engine.asked if call == ("measured",)])
        stop.wait.assert_called_once()

    def test_load_moves_cores_to_the_busy_one(self) -> None:
        self.share_cores(policy="load")
        service = self.world.service(policy="load")
        for _ in range(10):
            self.engine.containers_["a"].cpu_time += 5 * len(self.world.cores()["a"]) * 10**9
            self.world.rounds(service)
        self.assert_settled(a=3, b=1)


class MemoryTest(ServiceCase):
    def setUp(self) -> None:
        super().setUp()
        self.world = World(self.directory, memory=5 * GiB)
        self.engine, self.files = self.world.engine, self.world.files
        for name in ("a", "b"):
            self.engine.add(name, (1, 2), (GiB, 4 * GiB))

    def sizes(self) -> dict[str, int]:
        return {name: each.size.memory // MiB for name, each in self.engine.containers_.items() if each.size}

    def test_memory_is_divided(self) -> None:
        self.world.rounds(self.world.service(), 4)
        self.assertEqual({"a": 2048, "b": 2048}, self.sizes())

    def test_what_processes_use_stays(self) -> None:
        self.world.memory_used("a", 3 * GiB)
        self.world.write("proc/meminfo", f"MemTotal: {5 << 20} kB\nMemAvailable: {2 << 20} kB\n")
        self.world.rounds(self.world.service(), 4)
        self.assertTrue(self.sizes()["a"] > 3 * 1024 > self.sizes()["b"], self.sizes())

    def test_memory_shrinks_only_if_its_use_is_known(self) -> None:
        """The engine tells 0 where it does not know."""
        self.engine.containers_["a"].memory = 0
        self.world.rounds(self.world.service(), 4)
        self.assertEqual({"a": 4096, "b": 1024}, self.sizes())
        self.engine.containers_["a"].memory = MiB
        self.world.rounds(self.world.service(), 4)
        self.assertEqual({"a": 2048, "b": 2048}, self.sizes())

    def test_memory_shrinks_only_if_its_use_is_known_at_the_end(self) -> None:
        """While the guest is waited for the control group cannot be read any more."""
        self.keeps_its_memory(lambda: setattr(self.engine.containers_["a"], "memory", 0))

    def keeps_its_memory(self, change: Callable[[], object]) -> Service:
        """Let the use of memory change between the announcement to a guest and its acknowledgement."""
        service = self.world.service(notice=1000.0)
        self.files.listening |= {"a", "b"}
        self.engine.add("c", (1, 2), (GiB, 4 * GiB))
        self.world.rounds(service, 2)
        before = self.sizes()
        self.engine.add("d", (1, 2), (GiB, 4 * GiB))
        self.world.rounds(service)
        self.assertIn("fake/a", service.steps)
        change()
        self.files.acknowledge("a", self.files.document("a")["announced"]["generation"])
        self.world.rounds(service)
        self.assertEqual(before["a"], self.sizes()["a"])
        return service

    def test_fixed_memory_is_subtracted_once(self) -> None:
        self.world.write("proc/meminfo", f"MemTotal: {16 << 20} kB\nMemAvailable: {8 << 20} kB\n")
        self.engine.add("fixed", (1, 2), (8 * GiB, 8 * GiB))
        for name, used in (("a", GiB), ("b", GiB), ("fixed", 6 * GiB)):
            self.world.memory_used(name, used)
        self.engine.containers_["b"].status = Status.STOPPED
        self.world.rounds(self.world.service(), 4)
        self.engine.containers_["b"].status = Status.RUNNING
        self.world.rounds(self.world.service(), 4)
        self.assertEqual({"a": 3584, "b": 3584, "fixed": 8192}, self.sizes())

    def test_memory_that_comes_and_goes_by_less_than_a_unit_moves_nothing(self) -> None:
        service = self.world.service()
        self.world.rounds(service, 4)
        self.engine.add("c", (1, 2), (GiB, 4 * GiB))
        resized = []
        for place in range(20):
            self.world.write("proc/meminfo", f"MemTotal: {5 << 20} kB\nMemAvailable: {(5 << 20) - place % 3} kB\n")
            self.world.rounds(service)
            resized.append(sum(each[0] == "resize" for each in self.engine.asked))
        self.assertEqual(resized[4], resized[-1])

    def test_use_that_grows_after_the_announcement_keeps_the_memory(self) -> None:
        service = self.keeps_its_memory(lambda: self.world.memory_used("a", 3 * GiB))
        self.assertEqual(1, service.done["change", "in use"])
        self.assertIsNone(self.files.document("a")["announced"])


class OthersTest(ServiceCase):
    """Change the container at the same time from another process."""

    def setUp(self) -> None:
        super().setUp()
        self.share_cores()
        self.service = self.world.service()
        self.files.listening.add("a")
        self.files.acknowledge("a", 1)
        self.engine.add("c", (2, 4))
        self.world.rounds(self.service)
        self.a = self.engine.containers_["a"]
        self.assertIn("fake/a", self.service.steps)

    def test_resize_of_the_tenants_own_is_kept(self) -> None:
        """Also where its document has the number that the announced one was to have."""
        new = json.loads(self.a.labels[resources.LABEL]) | {"generation": 2, "memory": 3}
        self.a.labels[resources.LABEL] = json.dumps(new)
        self.a.version += 1
        self.files.acknowledge("a", 2)
        resized = len(self.engine.asked)
        self.service.round()
        self.assertNotIn(("resize", "a"), [tuple(each[:2]) for each in self.engine.asked[resized:]])
        self.assertEqual(3, json.loads(self.a.labels[resources.LABEL])["memory"])

    def test_no_change_while_another_process_changes_it(self) -> None:
        self.files.acknowledge("a", 2)
        with resizing(self.directory / "locks", "a"):
            self.service.round()
            self.assertEqual(2, self.world.counts()["a"])
        self.service.round()
        self.assertEqual(1, self.world.counts()["a"])

    def test_change_between_the_look_and_the_write_is_kept(self) -> None:
        self.files.acknowledge("a", 2)

        def overtaken(what: str) -> None:
            if what == "resize":
                self.a.version += 1
                self.engine.hook = lambda what: None

        self.engine.hook = overtaken
        self.service.round()
        self.assertEqual(2, self.world.counts()["a"])
        self.world.rounds(self.service, 8)
        self.assert_settled(a=1, b=1, c=2)

    def test_deleted_stopped_and_new_containers_are_not_changed(self) -> None:
        self.files.acknowledge("a", 2)
        before = self.a.version
        step = self.service.steps["fake/a"]
        for end in ("stopped", "deleted", "new"):
            with self.subTest(end):
                self.service.steps["fake/a"] = step
                self.a.status = Status.STOPPED
                if end != "stopped":
                    del self.engine.containers_["a"]
                if end == "new":
                    self.a = self.engine.add("a", None)
                    before = self.a.version
                self.world.rounds(self.service)
                self.assertNotIn("fake/a", self.service.steps)
                self.assertEqual((before, end == "deleted"), (self.a.version, "a" not in self.engine.containers_))
                self.engine.containers_["a"] = self.a

    def test_container_that_opts_out_is_left_alone(self) -> None:
        del self.a.labels[bounds.LABEL]
        self.files.acknowledge("a", 2)
        version = self.a.version
        self.world.rounds(self.service)
        self.assertEqual((2, version), (self.world.counts()["a"], self.a.version))

    def test_change_of_which_the_engine_does_not_tell_the_end_is_repeated(self) -> None:
        """It has the size but not the label: until it has both, nobody else gets its cores."""
        self.engine.containers_["b"].status = Status.STOPPED
        del self.engine.containers_["c"]

        def times_out(what: str) -> None:
            if what == "resized":
                raise errors.EngineTimeout("no answer")

        self.engine.hook = times_out
        self.world.rounds(self.service, 3)
        self.assertEqual({0, 1, 2, 3}, self.world.cores()["a"])
        self.engine.hook = lambda what: None
        self.engine.containers_["b"].status = Status.RUNNING
        self.engine.add("c", (1, 4))
        self.world.rounds(self.service)
        self.assertNotIn("c", self.world.cores())
        self.world.rounds(self.service, 30)
        self.assert_settled(a=2, b=1, c=1)

    def test_change_of_which_the_engine_made_a_part_is_undone(self) -> None:
        self.fail_after_the_size(1)
        self.assertEqual(1, self.service.done["change", "failed"])

    def test_change_that_cannot_be_undone_at_once_is_undone_later(self) -> None:
        self.fail_after_the_size(2)
        self.assertEqual(1, self.service.done["change", "failed"])

    def test_change_that_somebody_else_interrupted_is_finished_or_undone(self) -> None:
        self.fail_after_the_size(1, errors.EngineConflict)

    def fail_after_the_size(self, times: int, error: type[errors.EngineError] = errors.EngineError) -> None:
        """Let the container get its size and not its label, and then want the size that its label says."""
        left = [times]

        def fails(what: str) -> None:
            if what == "resized" and left[0]:
                left[0] -= 1
                raise error("the label cannot be written")

        self.files.acknowledge("a", 2)
        self.engine.hook = fails
        self.world.rounds(self.service)
        self.assertEqual(0, left[0])
        del self.engine.containers_["c"]
        self.world.rounds(self.service, 30)
        self.assert_settled(a=2, b=2)

    def test_change_that_the_engine_refuses_is_not_tried_at_once_again(self) -> None:
        self.files.acknowledge("a", 2)

        def refuse(name: str, size: Size) -> None:
            if len(size.cores) < 2:
                raise errors.EngineError("it cannot")

        self.engine.check = refuse
        self.world.rounds(self.service)
        self.assertEqual(1, self.service.done["change", "failed"])
        self.assertIsNone(self.files.document("a")["announced"])
        self.engine.check = lambda name, size: None
        self.world.rounds(self.service)
        self.assertNotIn("fake/a", self.service.steps)
        self.world.rounds(self.service, 20)
        self.assert_settled(a=1, b=1, c=2)
