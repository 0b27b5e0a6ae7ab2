# SPDX-License-Identifier: Apache-2.0
import concurrent.futures
import threading
from pathlib import Path
from typing import Any

import fixtures
import testtools

from containerhost import errors
from containerhost.engines.lxd import serialized_create
from containerhost.engines.lxd.client import Settings
from containerhost.engines.lxd.serialized_create import SerializedCreate


class FakeClient:
    """Gives a container its id range at the third look.

    :ivar most: creations that were without their range at the same time, at most
    """

    def __init__(self, outcome: BaseException | None = None) -> None:
        self.settings = Settings(operation_timeout=10)
        self.outcome = outcome
        self.daemon = self.daemon_now = 1
        self.is_there = False
        self.looks: dict[str, int] = {}
        self.without_range: set[str] = set()
        self.most = 0
        self.lock = threading.Lock()

    def server(self) -> Any:
        return {"environment": {"server_pid": self.daemon_now}}

    def operations(self) -> list[Any]:
        return []

    def begin_creation(self, body: Any, timeout: int | None = None) -> Any:
        with self.lock:
            self.without_range.add(body["name"])
            self.most = max(self.most, len(self.without_range))
        return {"id": body["name"]}

    create_instance = begin_creation

    def instance(self, name: str) -> Any:
        self.looks[name] = self.looks.get(name, 0) + 1
        if self.is_there:
            return {"config": {serialized_create.RANGE: "1000000"}}, ""
        if self.outcome or self.looks[name] == 1:
            raise errors.EngineNotFound(f"container {name} not found")
        if self.looks[name] == 2:
            return {"config": {}}, ""
        self.without_range.discard(name)
        return {"config": {serialized_create.RANGE: "1000000"}}, ""

    def is_over(self, operation: Any) -> bool:
        return self.outcome is not None

    def wait(self, operation: Any, asked: str, timeout: int | None = None) -> None:
        if self.outcome:
            raise self.outcome


def body(name: str, isolated: str = "true") -> Any:
    return {"name": name, "config": {"security.idmap.isolated": isolated}}


class CreationTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)

    def test_the_next_begins_when_the_last_has_its_range(self) -> None:
        client = FakeClient()
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(SerializedCreate(client, self.directory).create, [body(f"c{number}") for number in range(4)]))
        self.assertEqual(1, client.most)

    def test_a_creation_that_fails_ends_its_turn(self) -> None:
        client = FakeClient(outcome=errors.StorageFull("no space left"))
        made = SerializedCreate(client, self.directory)
        for name in ("c1", "c2"):
            self.assertRaises(errors.StorageFull, made.create, body(name))

    def test_forgotten_operation_is_judged_by_the_container_and_the_daemon(self) -> None:
        for is_there, daemon, is_made in ((True, 1, True), (False, 1, False), (True, 2, False)):
            client = FakeClient(outcome=errors.OperationForgotten("forgotten"))
            client.is_there, client.daemon_now = is_there, daemon
            made = SerializedCreate(client, self.directory)
            if is_made:
                made.create(body("c1"))
            else:
                self.assertRaises(errors.EngineUnavailable, made.create, body("c1"))

    def test_what_shares_its_ids_waits_for_nobody(self) -> None:
        client = FakeClient()
        SerializedCreate(client, self.directory).create(body("c1", isolated="false"))
        self.assertEqual({}, client.looks)

    def test_a_turn_that_does_not_come_is_told(self) -> None:
        client = FakeClient()
        made = SerializedCreate(client, self.directory)
        made._lock._timeout = 0.05
        with SerializedCreate(client, self.directory)._lock.held():
            error = self.assertRaises(errors.EngineTimeout, made.create, body("c1"))
        self.assertIn("create container c1", str(error))
        self.assertEqual(set(), client.without_range)
