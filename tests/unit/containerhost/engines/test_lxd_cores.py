# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import fixtures
import testtools

from containerhost.engines.lxd import cores
from containerhost.linux.sysfs import Host
from containerhost.privileged import Privileged


class LateClient:
    """LXD whose processes move only when a limit is written for the third time."""

    def __init__(self, root: Path, limit: str, after: int) -> None:
        self._root = root
        self._after = after
        self.limit = limit
        self.written: list[str] = []

    def instance(self, name: str) -> tuple[dict[str, Any], str]:
        return {"name": name, "config": {"limits.cpu": self.limit, "user.x": "y"}}, "etag"

    def replace_instance(self, name: str, body: dict[str, Any], etag: str) -> None:
        self.limit = body["config"]["limits.cpu"]
        self.written.append(self.limit)
        if len(self.written) == self._after:
            run_on(self._root, "0")


def run_on(root: Path, allowed: str) -> None:
    (root / "proc/7").mkdir(parents=True, exist_ok=True)
    (root / "proc/7/status").write_text(f"Name:\tinit\nCpus_allowed:\tff\nCpus_allowed_list:\t{allowed}\n")


class CoresTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.root = Path(self.useFixture(fixtures.TempDir()).path)
        (self.root / "sys/devices/system/cpu").mkdir(parents=True)
        (self.root / "sys/devices/system/cpu/online").write_text("0-3\n")
        self.host = Host(self.root)
        self.privileged = mock.Mock(Privileged)
        self.useFixture(fixtures.MockPatchObject(cores, "TIMEOUT", 0.01))

    def wait_applied(self, client: LateClient) -> list[str]:
        def change(name: str, write: Callable[[dict[str, Any], str], None]) -> None:
            write(*client.instance(name))

        cores.wait_applied(client, self.privileged, change, self.host, "c", 7, client.limit)  # type: ignore[arg-type]  # a fake
        return client.written

    def test_what_is_in_force_is_left_alone(self) -> None:
        run_on(self.root, "2")
        self.assertEqual([], self.wait_applied(LateClient(self.root, "1", after=0)))

    def test_a_step_behind(self) -> None:
        run_on(self.root, "0-3")
        self.assertEqual(["01", "1"], self.wait_applied(LateClient(self.root, "1", after=1)))

    def test_it_does_not_try_for_ever(self) -> None:
        run_on(self.root, "0-3")
        with mock.patch.object(cores.LOG, "warning") as warning:
            self.assertEqual(["02", "2"] * cores.TRIES, self.wait_applied(LateClient(self.root, "2", after=99)))
        warning.assert_called_once()
        self.assertEqual([mock.call.bind_cpus(7, [0, 1])], self.privileged.mock_calls)

    def test_a_container_that_ends_meanwhile_is_not_bound(self) -> None:
        run_on(self.root, "0-3")
        self.useFixture(fixtures.MockPatchObject(LateClient, "replace_instance", lambda *_: (
            self.root / "proc/7/status").unlink(missing_ok=True)))
        with mock.patch.object(cores, "TRIES", 1):
            self.wait_applied(LateClient(self.root, "2", after=99))
        self.assertEqual([], self.privileged.mock_calls)

    def test_what_lxd_cannot_bind_is_bound_here(self) -> None:
        run_on(self.root, "0-3")
        self.wait_applied(LateClient(self.root, "1-2", after=99))
        self.assertEqual([mock.call.bind_cpus(7, [1, 2])], self.privileged.mock_calls)

    def test_nothing_is_bound_where_the_limit_is_in_force(self) -> None:
        run_on(self.root, "0-1")
        for limit, expected in (("2", []), ("1", [0]), ("0-1", []), ("0,1", []), ("2-3", [2, 3])):
            self.assertEqual(expected, cores.to_bind(self.host, 7, limit), limit)
        self.assertEqual([], cores.to_bind(self.host, 8, "1"))
        run_on(self.root, "0-3")
        self.assertEqual([], cores.to_bind(self.host, 7, "64"))

    def test_in_other_words(self) -> None:
        self.assertEqual(("08", "00-03,07"), (cores.in_other_words("8"), cores.in_other_words("0-3,7")))
