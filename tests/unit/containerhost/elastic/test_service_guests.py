# SPDX-License-Identifier: Apache-2.0
"""Let guests acknowledge, ignore or obstruct the changes that the service announces."""

import contextlib
from unittest import mock

from containerhost import errors
from containerhost.elastic import changes
from containerhost.engines.resizelock import resizing
from tests.unit.containerhost.elastic.servicecase import ServiceCase


class GuestTest(ServiceCase):
    """Container c comes to two that have all cores."""

    def setUp(self) -> None:
        super().setUp()
        self.share_cores()
        self.service = self.world.service()
        self.world.rounds(self.service)

    def coming(self) -> None:
        self.engine.add("c", (2, 4))
        self.world.rounds(self.service)

    def test_guest_that_follows_is_asked_first(self) -> None:
        self.files.listening |= {"a", "b"}
        self.files.acknowledge("a", 1)
        self.files.acknowledge("b", 1)
        self.coming()
        self.assertEqual({"a": 2, "b": 2}, self.world.counts())
        for name in ("a", "b"):
            self.assertEqual((1, 1), tuple(self.files.document(name)[key] if key == "generation" else len(
                self.files.document(name)["announced"]["cpus"]["cores"]) for key in ("generation", "cpus")))
        self.assertFalse(self.service.is_ready())
        for name in ("a", "b"):
            self.files.acknowledge(name, 2)
        self.assertTrue(self.service.is_ready())
        self.world.rounds(self.service)
        self.assert_settled(a=1, b=1, c=2)
        self.assertEqual(2, self.service.done["change", "acknowledged"])

    def test_nothing_is_written_while_another_process_changes_it(self) -> None:
        """Nova has told the guest that its server is about to stop."""
        self.files.listening.add("a")
        self.files.acknowledge("a", 1)
        before = self.files.document("a")
        with resizing(self.directory / "locks", "a"):
            self.coming()
            self.assertEqual((before, 2), (self.files.document("a"), self.world.counts()["a"]))
        self.world.rounds(self.service)
        self.assertIsNotNone(self.files.document("a")["announced"])

    def test_guest_is_notified_after_another_process_that_changes_its_container_for_long(self) -> None:
        self.files.listening.add("a")
        self.files.acknowledge("a", 1)
        with resizing(self.directory / "locks", "a"):
            self.coming()
            self.world.rounds(self.service, 8)
        with mock.patch.object(changes, "resizing", side_effect=errors.EngineBusy("it is changed once more")):
            self.world.rounds(self.service)
        self.assertEqual(2, self.world.counts()["a"])
        self.world.rounds(self.service)
        self.assertEqual((2, 2), (self.world.counts()["a"], self.files.document("a")["announced"]["generation"]))

    def test_answer_to_an_announcement_that_was_withdrawn_is_none_to_the_next(self) -> None:
        self.files.acknowledge("a", 2)
        self.coming()
        self.assertEqual(3, self.files.document("a")["announced"]["generation"])
        self.world.rounds(self.service, 3)
        self.assertEqual(2, self.world.counts()["a"])
        self.files.acknowledge("a", 3)
        self.world.rounds(self.service)
        self.assert_settled(a=1, b=1, c=2)

    def test_guest_that_never_acknowledges_loses_it_in_the_end(self) -> None:
        self.files.listening.add("a")
        self.files.acknowledge("a", 1)
        self.coming()
        for _ in range(5):
            self.world.rounds(self.service)
            self.assertEqual(2, self.world.counts()["a"])
        self.world.rounds(self.service, 2)
        self.assert_settled(a=1, b=1, c=2)
        self.assertEqual(1, self.service.done["change", "timed out"])

    def test_guest_keeps_its_time_when_the_clock_is_set(self) -> None:
        self.files.listening.add("a")
        self.files.acknowledge("a", 1)
        self.coming()
        for jump in (3600, -7200):
            self.world.set_by += jump
            self.world.rounds(self.service, 2)
            self.assertEqual(2, self.world.counts()["a"])
        self.world.rounds(self.service, 3)
        self.assert_settled(a=1, b=1, c=2)

    def test_guest_that_the_engine_keeps_from_being_told_is_told_later(self) -> None:
        self.files.listening.add("a")
        self.files.acknowledge("a", 1)
        self.engine.hook = self.fails
        self.coming()
        self.world.rounds(self.service, 3)
        self.engine.hook = lambda what: None
        self.world.rounds(self.service)
        self.assertEqual(2, self.world.counts()["a"])
        self.assertEqual(2, self.files.document("a")["announced"]["generation"])
        self.world.rounds(self.service, 5)
        self.assertEqual(2, self.world.counts()["a"])
        self.world.rounds(self.service, 12)
        self.assert_settled(a=1, b=1, c=2)  # those without a change are notified, too

    def test_guest_that_the_engine_never_lets_be_told_keeps_nothing(self) -> None:
        self.files.listening.add("a")
        self.files.acknowledge("a", 1)
        self.engine.hook = self.fails
        self.coming()
        self.world.rounds(self.service, 8)
        self.assertEqual({"a": 1, "b": 1, "c": 2}, self.world.counts())

    @staticmethod
    def fails(what: str) -> None:
        if what == "write":
            raise errors.EngineTimeout("it does not tell the container's process")

    def test_guest_that_does_not_listen_is_not_waited_for(self) -> None:
        self.coming()
        self.assert_settled(a=1, b=1, c=2)

    def test_guest_whose_file_cannot_be_written_is_resized_nevertheless(self) -> None:
        self.files.acknowledge("a", 1)
        self.files.refusing.add("a")
        self.coming()
        self.assertEqual({"a": 1, "b": 1, "c": 2}, self.world.counts())

    def test_what_is_not_needed_any_more_is_withdrawn(self) -> None:
        self.files.listening |= {"a", "b"}
        self.files.acknowledge("a", 1)
        self.files.acknowledge("b", 1)
        self.coming()
        del self.engine.containers_["c"]
        self.world.rounds(self.service)
        self.assert_settled(a=2, b=2)

    def test_change_that_takes_more_than_is_needed_by_now_is_not_made(self) -> None:
        """The host gets cores back after a change was announced or begun that leaves less than its least."""
        def unavailable(what: str) -> None:
            if what == self.failing:
                raise errors.EngineUnavailable("it restarts")

        del self.engine.containers_["b"]
        self.a = self.engine.add("a", (2, 2))
        self.engine.hook = unavailable
        self.failing = ""
        self.world.rounds(self.service)
        for point in ("", "resize", "resized"):
            with self.subTest(point):
                self.failing = point
                if point:
                    self.files.files.clear()
                else:
                    self.files.listening.add("a")
                    self.files.acknowledge("a", 99)
                self.world.set_cores(1)
                for _ in range(2):
                    with contextlib.suppress(errors.EngineUnavailable):
                        self.world.rounds(self.service)
                self.failing = ""
                self.world.set_cores(3)
                self.engine.check = lambda name, size: self.assertEqual(2, len(size.cores))
                self.world.rounds(self.service, 3)
                self.engine.check = lambda name, size: None
                self.assertEqual({"a": 2}, self.world.counts())
                self.assertEqual({}, self.service.steps)
