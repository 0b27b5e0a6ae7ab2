# SPDX-License-Identifier: Apache-2.0
"""Nova is told at once what happens to containers without its doing."""

from tests.functional.nova import base  # isort: skip

import os
import signal
import threading
from typing import Any, ClassVar

from containerhost.engines.contract import Status
from tests import levels
from tests.waiting import await_that


class WatchTest(base.LxdServers):
    options: ClassVar = {("workarounds", "handle_virt_lifecycle_events"): True}

    def pid(self, server: dict[str, Any]) -> int | None:
        return self.lxd.engine.metrics(self.container(server).name).pid

    def test_a_guest_that_ends_itself_is_shut_off_and_one_that_reboots_runs_on(self) -> None:
        ending, rebooting = self.server(), self.server()
        before = self.pid(rebooting)
        self.inside(ending, "poweroff")
        self.inside(rebooting, "reboot")
        self._wait_for_state_change(ending, "SHUTOFF")
        await_that(lambda: self.pid(rebooting) not in (None, before), "the guest's reboot")
        self.assertEqual("ACTIVE", self.api.get_server(rebooting["id"])["status"])
        self.assertEqual(Status.RUNNING, self.container(rebooting).status)
        self._start_server(ending)

    @levels.exhaustive("units show it; a guest that ends itself remains")
    def test_what_happens_while_the_daemon_is_away_is_told_when_it_is_back(self) -> None:
        server = self.server()
        pid = self.pid(server)
        self.lxd.daemon.stop()
        os.kill(pid, signal.SIGKILL)
        self.lxd.daemon.start()
        self._wait_for_state_change(server, "SHUTOFF")
        self.computes[base.HOST].stop()
        self.assertEqual([], [thread for thread in threading.enumerate() if thread.name == "watch"])
