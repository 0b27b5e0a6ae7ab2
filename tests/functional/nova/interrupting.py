# SPDX-License-Identifier: Apache-2.0
"""Something happens in the middle of what the driver does."""

from collections.abc import Callable
from typing import Any

import fixtures

from containerhost.engines.lxd.client import LxdClient
from tests.functional.nova import base
from tests.waiting import await_that


class Interrupted(base.LxdServers):
    def at(self, asked: str, act: Callable[[], None]) -> None:
        """Act once, just after the daemon got the request ``asked``."""
        acts = [act]
        original = LxdClient.request

        def request(this: LxdClient, *args: Any, **kwargs: Any) -> Any:
            response = original(this, *args, **kwargs)
            if acts and kwargs["asked"].startswith(asked):
                acts.pop()()
            return response
        self.useFixture(fixtures.MonkeyPatch("containerhost.engines.lxd.client.LxdClient.request", request))

    def restart_at(self, asked: str) -> None:
        """Let the daemon restart when it is next asked this; a renaming it finishes before.

        Killed in the middle of one, LXD 5.0 may know a container by one name and its volume by the other, for good."""
        self.at(asked, self._restart_when_renamed if asked.startswith("rename") else self._restart)

    def _restart_when_renamed(self) -> None:
        client = self.lxd.engine.client
        await_that(lambda: "Renaming instance" not in [operation["description"] for operation in client.operations()],
                   "LXD has renamed it", pause=0.01)
        self._restart()

    def _restart(self) -> None:
        self.lxd.daemon.kill()
        self.lxd.daemon.start()
