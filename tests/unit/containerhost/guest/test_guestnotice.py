# SPDX-License-Identifier: Apache-2.0
"""Test the notice to a container: the document, the announcement, and the helper in the guest that reads both."""

import json
import time
from typing import Any

import fixtures
import testtools

from containerhost import errors
from containerhost.engines.spec import Cpu, Memory
from containerhost.guest import resources
from containerhost.guest.guestnotice import GuestNotice
from tests.unit.containerhost.engines.test_lxd_config import GiB, container, gpu_grant, vf_grant


def told(before: str | None = None, **more: Any) -> str:
    return resources.with_document(container(**more), before).labels[resources.LABEL]


class DocumentTest(testtools.TestCase):
    def test_what_it_says(self) -> None:
        found = json.loads(told(cpu=Cpu(2, frozenset({5, 4})), parts=(gpu_grant(), vf_grant())))
        gpu, vf = found.pop("devices")
        self.assertEqual({"schema": 1, "generation": 1, "cpus": {"count": 2, "cores": [4, 5]}, "memory": GiB,
                          "environment": {"CUDA_VISIBLE_DEVICES": "GPU-1"}, "announced": None}, found)
        self.assertEqual({"id": "0000:3b:00.0", "kind": "gpu", "vendor": "10de", "uuid": "GPU-1", "interface": None,
                          "nodes": ["/dev/nvidia0", "/dev/dri/card0", "/dev/nvidiactl"]}, gpu)
        self.assertEqual(("net", "ib0"), (vf["kind"], vf["interface"]))

    def test_the_generation_grows_with_changes_only(self) -> None:
        first = told()
        self.assertEqual(first, told(first))
        second = told(first, memory=Memory(2 * GiB))
        self.assertEqual((1, 2), tuple(json.loads(text)["generation"] for text in (first, second)))
        self.assertEqual(1, json.loads(told("no document"))["generation"])

    def test_shrinking(self) -> None:
        before = told(cpu=Cpu(2), parts=(gpu_grant(),))
        for more, shrinks in (({"cpu": Cpu(1), "parts": (gpu_grant(),)}, True), ({"cpu": Cpu(4)}, True),
                              ({"cpu": Cpu(2), "memory": Memory(GiB - 1), "parts": (gpu_grant(),)}, True),
                              ({"cpu": Cpu(4), "parts": (vf_grant(), gpu_grant())}, False)):
            with self.subTest(more):
                self.assertEqual(shrinks, resources.shrinks(before, told(before, **more)))


class Guest:
    """Files of a container, and a guest that acknowledges when it is looked at for the ``nth`` time after an
    announcement; never when that is 0.
    """

    def __init__(self, knows: int | None, nth: int) -> None:
        self.files = {} if knows is None else {resources.ACKNOWLEDGED: json.dumps({"generation": knows}).encode()}
        self.written: list[dict[str, Any]] = []
        self._nth = nth

    def write(self, name: str, path: str, content: bytes) -> None:
        self.written.append(json.loads(content))

    def read(self, name: str, path: str) -> bytes | None:
        announced = self.written and self.written[-1]["announced"]
        if announced:
            self._nth -= 1
            if self._nth == 0:
                self.files[path] = json.dumps({"generation": announced["generation"]}).encode()
        return self.files.get(path)


class AnnouncementTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.now = 1000.0
        self.before = told(cpu=Cpu(4))
        self.after = told(self.before, cpu=Cpu(2))

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def announce(self, files: Any, after: str | None = None) -> bool:
        notice = GuestNotice(files, 30, time.time, lambda: self.now, self.sleep)
        return notice.announce("c1", self.before, after or self.after)

    def test_it_is_waited_for_the_guest(self) -> None:
        files = Guest(knows=1, nth=5)
        self.assertTrue(self.announce(files))
        (written,) = files.written
        self.assertEqual((1, 4), (written["generation"], written["cpus"]["count"]))
        self.assertEqual((2, 2), (written["announced"]["generation"], written["announced"]["cpus"]["count"]))
        self.assertAlmostEqual(time.time() + 30, written["announced"]["until"], delta=20)
        self.assertLess(self.now, 1002)

    def test_not_longer_than_the_limit(self) -> None:
        self.assertTrue(self.announce(Guest(knows=1, nth=0)))
        self.assertTrue(1030 <= self.now < 1031)

    def test_answer_to_an_earlier_announcement_is_none_to_this_one(self) -> None:
        files = Guest(knows=2, nth=5)
        self.assertTrue(self.announce(files))
        (written,) = files.written
        self.assertEqual((1, 3), (written["generation"], written["announced"]["generation"]))
        self.assertEqual(b'{"generation": 3}', files.files[resources.ACKNOWLEDGED])

    def test_who_does_not_listen_is_not_waited_for(self) -> None:
        """Nor who listened to an earlier generation and then ended, nor who is to get more."""
        for files, after in ((Guest(None, 1), None), (Guest(0, 1), None), (Guest(1, 1), told(self.before, cpu=Cpu(8)))):
            self.assertFalse(self.announce(files, after))
            self.assertEqual(([], 1000.0), (files.written, self.now))

    def test_what_a_hostile_guest_writes(self) -> None:
        for content in (b"", b"[1]", b'{"generation": "1"}', b"\xff\xfe", b"[" * 60000, b'{"generation": null}',
                        b'{"generation": -5}', b'{"generation": 99999999999999999999}',
                        b'{"generation": %s}' % (b"9" * 4300)):
            files = Guest(None, 0)
            files.files[resources.ACKNOWLEDGED] = content
            self.assertFalse(self.announce(files))

    def test_guest_that_the_engine_keeps_from_being_told_is_told_later(self) -> None:
        class Failing(Guest):
            fails = 3
            error: type[errors.EngineError]

            def write(self, name: str, path: str, content: bytes) -> None:
                self.fails -= 1
                if self.fails >= 0:
                    raise self.error("it does not tell the container's process")
                super().write(name, path, content)

        for error in (errors.EngineTimeout, errors.EngineBusy):
            files = Failing(knows=1, nth=1)
            files.error = error
            self.assertTrue(self.announce(files))
            self.assertEqual(1, len(files.written))

    def test_an_engine_that_fails_is_not_waited_for_without_end(self) -> None:
        class Failing(Guest):
            def read(self, name: str, path: str) -> bytes | None:
                raise errors.EngineTimeout("it does not tell the container's process")

        self.assertFalse(self.announce(Failing(knows=1, nth=1)))
        self.assertTrue(1030 <= self.now < 1031)

    def test_a_container_that_does_not_run_is_not_waited_for(self) -> None:
        for error in (errors.EngineConflict("it does not run"), errors.EngineNotFound("no such container")):
            files = Guest(knows=1, nth=1)
            self.useFixture(fixtures.MockPatchObject(files, "read", side_effect=error))
            self.assertFalse(self.announce(files))
            self.assertEqual(1000.0, self.now)

    def test_a_container_without_such_files(self) -> None:
        class Refusing(Guest):
            def write(self, name: str, path: str, content: bytes) -> None:
                raise errors.HostActionFailed("not a directory")

        self.assertFalse(self.announce(Refusing(knows=1, nth=1)))


class Files:
    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def write(self, name: str, file: str, content: bytes) -> None:
        self.files[file] = content

    def read(self, name: str, file: str) -> bytes | None:
        return self.files.get(file)


class FaultsTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.guest = Files()
        self.notice = GuestNotice(self.guest, 30)

    def test_faults_and_their_end_are_written(self) -> None:
        for faults in (["0000:3b:00.0: Xid 48"], []):
            self.assertTrue(self.notice.tell_faults("c1", faults))
            self.assertEqual({"schema": 1, "faults": faults}, json.loads(self.guest.files["faults.json"]))

    def test_nothing_is_written_where_nothing_was_told(self) -> None:
        self.assertTrue(self.notice.tell_faults("c1", []))
        self.assertEqual({}, self.guest.files)

    def test_container_without_such_files_is_told_later(self) -> None:
        class Refusing(Files):
            def write(self, name: str, file: str, content: bytes) -> None:
                raise errors.HostActionFailed("a link")

        self.assertFalse(GuestNotice(Refusing(), 30).tell_faults("c1", ["x"]))
