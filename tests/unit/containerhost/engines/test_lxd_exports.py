# SPDX-License-Identifier: Apache-2.0
"""Packing against a daemon in memory; the real one packs in tests/functional/nova/test_snapshots.py."""

from types import SimpleNamespace
from typing import Any

import fixtures
import testtools

from containerhost import errors
from containerhost.engines.capabilities import Packed
from containerhost.engines.lxd.exports import PREFIX, Exports, failed

RUNNING, STOPPED, FROZEN = 103, 102, 110


class Client:
    """:ivar operation: what LXD says of the packing, look by look"""

    def __init__(self, status: int = RUNNING, operation: tuple[dict[str, Any], ...] = ()) -> None:
        self.settings = SimpleNamespace(shown=lambda: "/socket")
        self.status = status
        self.operation = list(operation)
        self.asked: list[tuple[Any, ...]] = []
        self.stored: list[dict[str, Any]] = []
        self.waited = 0
        self.deletions: list[Exception] = []
        self.driver = "dir"
        self.failing = ""
        self.away = 0
        self.gone = False

    def instance(self, name: str) -> tuple[dict[str, Any], str]:
        if self.gone and self.asked:
            raise errors.EngineNotFound(f"container {name} not found")
        return {"name": name, "status_code": self.status, "architecture": "x86_64",
                "expanded_devices": {"root": {"pool": "default"}}}, "etag"

    def pool(self, name: str) -> dict[str, Any]:
        return {"driver": self.driver}

    def set_state(self, name: str, action: str) -> None:
        self._noted((action, name))
        if self.gone and action == "unfreeze":
            raise errors.EngineNotFound(f"container {name} not found")

    def request(self, method: str, *path: str, asked: str, **more: Any) -> Any:
        self._noted((method, *path, more.get("json")))
        return SimpleNamespace(json=lambda: {"metadata": {"id": "1"}}, close=lambda: None,
                               iter_content=lambda size: iter((b"one", b"two")))

    def _noted(self, asked: tuple[Any, ...]) -> None:
        self.asked.append(asked)
        if self.away and asked[0] != "freeze":
            self.away -= 1
            raise errors.EngineUnavailable("it restarts")
        if asked[0] == self.failing:
            raise errors.EngineError("it failed")

    def finish(self, response: Any, asked: str, timeout: int | None = None) -> dict[str, Any]:
        if asked.startswith("delete snapshot") and self.deletions:
            raise self.deletions.pop(0)
        return {}

    def get(self, *path: str, asked: str, **more: Any) -> Any:
        if path[0] == "operations":
            return {"id": "1", **self.operation.pop(0)}
        if path[1] == "gone":
            raise errors.EngineNotFound("container gone not found")
        return [f"/1.0/instances/c1/snapshots/{PREFIX}old?project=x", "/1.0/instances/c1/snapshots/tenants"]

    def wait(self, operation: Any, asked: str, timeout: int | None = None) -> dict[str, Any]:
        self.waited += 1
        raise errors.EngineError("it failed by itself")

    def operations(self) -> list[dict[str, Any]]:
        return []

    def images(self) -> list[dict[str, Any]]:
        return self.stored

    def delete_image(self, fingerprint: str) -> None:
        self.asked.append(("delete image", fingerprint))


class LateClient(Client):
    """A daemon that freezes a container only after its caller has given up.

    :ivar late: whether it has not done so yet
    """

    def __init__(self) -> None:
        super().__init__()
        self.driver = "btrfs"
        self.late = True

    def set_state(self, name: str, action: str) -> None:
        if action == "freeze":
            raise errors.EngineTimeout("freeze: not done in time")
        if self.status != FROZEN:
            raise errors.EngineError("it is not frozen")
        self.status = RUNNING

    def operations(self) -> list[dict[str, Any]]:
        return [{"status_code": 103, "class": "task", "description": "Freezing", "resources":
                 {"instances": ["/1.0/instances/c1"]}}]

    def wait(self, operation: Any, asked: str, timeout: int | None = None) -> dict[str, Any]:
        self.late, self.status = False, FROZEN
        return {}


def going(percent: int) -> dict[str, Any]:
    return {"status_code": 103, "metadata": {"progress": {"percent": str(percent)}}}


DONE = {"status_code": 200, "metadata": {"fingerprint": "f", "size": "7"}}


class ExportsTest(testtools.TestCase):
    def exports(self, client: Client, limit: int = 60) -> Exports:
        return Exports(client, "zstd", limit)  # type: ignore[arg-type]

    def test_only_a_stopped_container_is_packed_without_a_snapshot(self) -> None:
        for status, expected, requests in ((RUNNING, ("snapshot", f"c1/{PREFIX}k"), 1), (110, None, 1),
                                           (STOPPED, ("container", "c1"), 0)):
            client = Client(status)
            source = self.exports(client).take("c1", "k")
            self.assertIn(expected, (None, (source.kind, source.name)))
            self.assertEqual(requests, len(client.asked))

    def test_running_container_is_frozen_where_its_files_are_searched(self) -> None:
        for driver, status, expected in (("btrfs", RUNNING, ["freeze", "post", "unfreeze"]), ("zfs", RUNNING, ["post"]),
                                         ("btrfs", 110, ["post"])):
            client = Client(status)
            client.driver = driver
            self.exports(client).take("c1", "k")
            self.assertEqual(expected, [asked[0] for asked in client.asked])

    def test_container_runs_on_whatever_fails(self) -> None:
        for failing in ("freeze", "post"):
            client = Client()
            client.driver, client.failing = "btrfs", failing
            self.assertRaises(errors.EngineError, self.exports(client).take, "c1", "k")
            self.assertEqual("unfreeze", client.asked[-1][0])

    def test_container_runs_on_after_a_freeze_that_was_done_too_late(self) -> None:
        client = LateClient()
        self.assertRaises(errors.EngineTimeout, self.exports(client).take, "c1", "k")
        self.assertEqual((False, RUNNING), (client.late, client.status))

    def test_failure_is_told_of_a_container_that_goes_meanwhile(self) -> None:
        client = Client()
        client.driver, client.failing, client.gone = "btrfs", "post", True
        self.assertIn("it failed", str(self.assertRaises(errors.EngineError, self.exports(client).take, "c1", "k")))

    def test_container_runs_on_after_the_daemon_restarted_in_the_middle(self) -> None:
        self.useFixture(fixtures.MonkeyPatch("containerhost.engines.lxd.snapshots.POLL_INTERVAL", 0))
        client = Client()
        client.driver, client.away = "btrfs", 3
        self.assertRaises(errors.EngineUnavailable, self.exports(client).take, "c1", "k")
        self.assertEqual((0, "unfreeze"), (client.away, client.asked[-1][0]))

    def test_packs_and_tells_how_far_it_is(self) -> None:
        client, told = Client(operation=({"status_code": 103, "metadata": None}, going(40), DONE)), []
        source = self.exports(client).take("c1", "k")
        self.assertEqual(Packed("f", 7), self.exports(client).pack(source, "k", told.append))
        self.assertEqual([0, 40], told)
        body = client.asked[-1][-1]
        self.assertEqual(("zstd", f"{PREFIX}k", {"export": "k"}),
                         (body["compression_algorithm"], body["filename"], body["properties"]))

    def test_whatever_ends_the_packing_early_what_it_makes_is_waited_for(self) -> None:
        def deleted(percent: int) -> None:
            raise KeyError("the server")
        for error, limit, progress in ((KeyError, 60, deleted), (errors.EngineTimeout, 0, print)):
            client = Client(operation=(going(1), DONE))
            source = self.exports(client).take("c1", "k")
            self.assertRaises(error, self.exports(client, limit).pack, source, "k", progress)
            self.assertEqual(1, client.waited)

    def test_a_full_disk_is_told_however_lxd_words_it(self) -> None:
        for words, error in (("signal: broken pipe", errors.StorageFull),
                             ("No space left on device", errors.StorageFull),
                             ("tar: cannot open", errors.EngineError)):
            found = failed("pack c1", words)
            self.assertIs(error, type(found))
            self.assertIn(words, str(found))
            self.assertEqual(error is errors.StorageFull, "is the disk full" in str(found))

    def test_reads_piece_by_piece(self) -> None:
        with self.exports(Client()).reading(Packed("f", 6)) as reader:
            self.assertEqual([(b"one", 3), (b"two", 6), (b"", 6)], [(reader.read(), reader.done) for _ in range(3)])

    def test_file_that_ends_early_fails(self) -> None:
        with self.exports(Client()).reading(Packed("f", 7)) as reader:
            self.assertRaises(errors.EngineError, lambda: [reader.read() for _ in range(3)])

    def test_discards_its_own_image_and_snapshot_only(self) -> None:
        client = Client()
        client.stored = [{"fingerprint": "f", "filename": f"{PREFIX}k"}, {"fingerprint": "g", "filename": f"{PREFIX}l"},
                         {"fingerprint": "h"}]
        self.exports(client).discard("c1", "k")
        self.assertEqual([("delete image", "f"), ("delete", "instances", "c1", "snapshots", f"{PREFIX}k", None)],
                         client.asked)

    def test_purges_all_but_the_running(self) -> None:
        client = Client()
        client.stored = [{"fingerprint": "f", "filename": f"{PREFIX}dead"}, {"fingerprint": "g", "filename": "busybox"},
                         {"fingerprint": "h", "filename": f"{PREFIX}running"}]
        self.assertEqual(("dead", "old"), self.exports(client).purge(["c1", "gone"], ["running"]))
        self.assertEqual([("delete image", "f"), ("delete", "instances", "c1", "snapshots", f"{PREFIX}old", None)],
                         client.asked)

    def test_a_deletion_that_goes_on_in_lxd_is_waited_for(self) -> None:
        """Its caller was killed, and LXD refuses a second one until it is over."""
        self.useFixture(fixtures.MonkeyPatch("containerhost.engines.lxd.snapshots.POLL_INTERVAL", 0))
        client = Client()
        client.deletions = [errors.EngineError("Failed setting subvolume writable"), errors.EngineNotFound("gone")]
        self.assertEqual(("old",), self.exports(client).purge(["c1"], []))
        self.assertEqual([], client.deletions)

    def test_what_cannot_be_purged_keeps_nothing_else_from_it(self) -> None:
        log = self.useFixture(fixtures.FakeLogger())
        client = Client()
        client.stored = [{"fingerprint": "f", "filename": f"{PREFIX}zero"}]
        client.deletions = [errors.EngineTimeout("busy")]
        self.assertEqual(("zero",), self.exports(client).purge(["c1"], []))
        self.assertIn("the next start: busy", log.output)
