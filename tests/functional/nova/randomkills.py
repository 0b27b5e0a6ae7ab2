# SPDX-License-Identifier: Apache-2.0
"""Kill nova-compute or LXD at random steps of random operations, and count what became of them.

Run by bench/kills.py; the points that every change is tested at are in test_recovery."""

from tests.functional.nova import base, test_recovery  # isort: skip (decides how nova runs)

import collections
import dataclasses
import random
import sys
import traceback
from collections.abc import Mapping
from typing import Any, ClassVar

LXD_SHARE = 0.25


@dataclasses.dataclass
class Figures:
    """:ivar outcomes: by operation and victim: how often it was finished, undone or set to ERROR, or had ended before
    :ivar leftovers: in words
    """

    outcomes: dict[str, collections.Counter[str]] = dataclasses.field(
        default_factory=lambda: collections.defaultdict(collections.Counter))
    leftovers: list[str] = dataclasses.field(default_factory=list)

    @property
    def kills(self) -> int:
        return sum(count for outcome in self.outcomes.values() for name, count in outcome.items() if name != "ended")


class RandomKills(test_recovery.RecoveryServers):
    wanted: ClassVar[int] = 200
    seed: ClassVar[int] = 1
    only: ClassVar[tuple[str, ...]] = ()
    figures: ClassVar[Figures] = Figures()

    def test_kills(self) -> None:
        chance, server = random.Random(self.seed), self._new()
        lengths: dict[str, int] = {}
        names = sorted(self.only or self.operations())
        while self.figures.kills < self.wanted:
            name = chance.choice(names)
            victim = "LXD" if chance.random() < LXD_SHARE else "nova-compute"
            step = -1
            try:
                if name not in lengths:
                    lengths[name] = len(self.effects(server, name))
                step = chance.randrange(lengths[name])
                outcome = self._kill(server, name, step, victim)
                print(f"{self.figures.kills}: {victim} at step {step} of {lengths[name]} of {name}: {outcome}",
                      file=sys.stderr, flush=True)
            except Exception as error:
                traceback.print_exc(file=sys.stderr)
                self.figures.leftovers.append(f"{victim} at step {step} of {name}: {error}")
                self.figures.outcomes[f"{name} ({victim})"]["left"] += 1
                server = self._replace(server)
        self._delete_server(server)
        self.assert_nothing_left()
        self.assertEqual([], self.figures.leftovers)

    def _new(self) -> Mapping[str, Any]:
        return self.admin_api.get_server(self.server(self.small)["id"])

    def _replace(self, server: Mapping[str, Any]) -> Mapping[str, Any]:
        """One failure must not hide what the next kills do."""
        self.killer.arm(None, base.HOST)
        self.restart()
        self.admin_api.post_server_action(server["id"], {"os-resetState": {"state": "error"}})
        self.admin_api.delete_server(server["id"])
        test_recovery.await_that(lambda: self._is_gone(server), "the server is deleted", test_recovery.IN_FLIGHT)
        return self._new()

    def _is_gone(self, server: Mapping[str, Any]) -> bool:
        return server["id"] not in {found["id"] for found in self.admin_api.get_servers(detail=False)}

    def _kill(self, server: Mapping[str, Any], name: str, step: int, victim: str) -> str:
        prepare, request = self.operations()[name]
        prepare(server)
        if victim == "LXD":
            happened = self._with_lxd_restarted(server, lambda: request(server), step)
        else:
            happened = self.killed(server, lambda: request(server), step)
        status = self.settled(server)
        actions = self.admin_api.get_instance_actions(server["id"])
        outcome = "ended" if not happened else "ERROR" if status == "ERROR" else \
            "undone" if actions[0]["message"] == "Error" else "finished"
        self.check(name, server, step, happened)
        self.normal(server)
        self.assertEqual([], self.leftovers(server), f"{name}, then brought back")
        self.figures.outcomes[f"{name} ({victim})"][outcome] += 1
        return outcome

    def _with_lxd_restarted(self, server: Mapping[str, Any], begin: Any, step: int) -> bool:
        def restart() -> None:
            self.lxd.daemon.kill()
            self.lxd.daemon.start()
        self.killer.arm(step, base.HOST, restart)
        begin()
        test_recovery.await_that(lambda: self.idle(server), "the request ends", test_recovery.IN_FLIGHT)
        happened = self.killer.happened.is_set()
        self.killer.arm(None, base.HOST)  # the daemon is back
        return happened
