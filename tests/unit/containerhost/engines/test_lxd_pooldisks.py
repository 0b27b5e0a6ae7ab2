# SPDX-License-Identifier: Apache-2.0
from typing import Any

import testtools

from containerhost import errors
from containerhost.engines.capabilities import Disk
from containerhost.engines.lxd.pooldisks import PoolDisks


class FakeClient:
    def __init__(self, *volumes: dict[str, Any]) -> None:
        self.volumes = volumes
        self.written: list[tuple[str, tuple[str, ...], Any]] = []
        self.error: Exception | None = None

    def get(self, *path: str, asked: str, params: Any) -> Any:
        return self.volumes

    def request(self, method: str, *path: str, asked: str, json: Any = None) -> Any:
        if self.error:
            raise self.error
        self.written.append((method, path, json))

    def finish(self, response: Any, asked: str) -> None:
        """Nothing is left to wait for."""


PATH = ("storage-pools", "p", "volumes", "custom")
VOLUME = {"name": "d", "config": {"size": "10", "user.nova.uuid": "u", "volatile.idmap.last": "[]"}, "used_by": ["c1"]}
LABELS = {"nova.uuid": "u"}


class PoolDisksTest(testtools.TestCase):
    def test_as_lxd_tells_them(self) -> None:
        self.assertEqual((Disk("d", 10, LABELS, True), Disk("e", 0, {}, False)), PoolDisks(FakeClient(
            VOLUME, {"name": "e", "config": {}, "used_by": []}), "p").all())

    def test_made_when_it_is_missing_and_only_ever_larger(self) -> None:
        body = {"name": "d", "config": {"size": "10", "user.nova.uuid": "u"}}
        for present, size, expected in (
            ((), 10, [("post", PATH, body)]),
            ((VOLUME,), 10, []),
            ((VOLUME,), 5, []),
            ((VOLUME,), 20, [("patch", (*PATH, "d"), {"config": {"size": "20"}})]),
        ):
            client = FakeClient(*present)
            PoolDisks(client, "p").ensure("d", size, LABELS)
            self.assertEqual(expected, client.written)

    def test_somebody_elses_is_left_alone(self) -> None:
        client = FakeClient(VOLUME)
        self.assertRaises(errors.EngineConflict, PoolDisks(client, "p").ensure, "d", 10, {"nova.uuid": "other"})
        self.assertEqual([], client.written)

    def test_deleted_and_gone_already(self) -> None:
        client = FakeClient(VOLUME)
        PoolDisks(client, "p").delete("d")
        self.assertEqual([("delete", (*PATH, "d"), None)], client.written)
        client.error = errors.EngineNotFound("no such volume")
        PoolDisks(client, "p").delete("d")
