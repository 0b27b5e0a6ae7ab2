# SPDX-License-Identifier: Apache-2.0
"""A user of the node who has nothing to do with OpenNebula cannot hinder it."""

import json
import os
import socket
from pathlib import Path

from containerhost.engines.contract import Status
from onedriver.node import single_instance
from tests.functional_one.commands import Commands
from tests.functional_one.front_end import FrontEnd
from tests.functional_one.test_actions import CLEANUP, POWEROFF, RESUME, SHUTDOWN, ActionsCase
from tests.functional_one.test_console import PORT, graphics
from tests.functional_one.vms import Machine

NOBODY = 65534
NAMES = ("one-console/one-1", "one-console-client/one-1", "one-command/one-1", "opennebula-monitor/0/lxdone/3")


def take(directory: Path) -> list[str]:
    """Take the abstract names of sockets that earlier releases used, and try to take those of today.

    :returns: what went wrong for the host
    """
    found = []
    for name in NAMES:
        place = socket.socket(socket.AF_UNIX)
        place.bind(f"\0{name}")
        place.listen()
        place.detach()  # open as long as the process
        for use in (socket.socket.bind, socket.socket.connect):
            try:
                use(socket.socket(socket.AF_UNIX), str(directory / name.replace("/", ":")))
                found.append(f"entered {directory} as {name}")
            except PermissionError:
                continue
    return found


class LocalUserTest(Commands, ActionsCase):
    def hostile(self) -> None:
        """A process of another user that goes on until the test ends."""
        with single_instance.take("lxdone-test"):
            directory = single_instance.directory()
        answer, told = os.pipe()
        over, end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.close(end)
            os.write(told, json.dumps(take(directory)).encode())
            os.read(over, 1)
            os._exit(0)
        self.addCleanup(os.waitpid, pid, 0)
        self.addCleanup(os.close, end)
        os.close(told)
        os.close(over)
        self.assertEqual([], json.loads(os.read(answer, 4096)))
        os.close(answer)

    def test_names_that_a_user_takes_stop_nothing(self) -> None:
        self.hostile()
        machine = self.deployed(Machine(more=graphics(PORT=PORT)))
        self.assertIn(NAMES[0], single_instance.names())
        self.ok("shutdown", machine, lcm=POWEROFF)
        self.assertEqual(Status.STOPPED, self.status(machine))
        self.ok("deploy", machine, lcm=RESUME)
        self.ok("save", machine, lcm=6)
        self.ok("restore", machine, lcm=20)
        self.begun(machine, "sleep 1000")
        self.cancelled(machine)
        self.ok("shutdown", machine, lcm=SHUTDOWN)
        machine = self.deployed()
        self.ok("cancel", machine, lcm=CLEANUP)
        self.assertFalse(self.engine.exists(machine.name))

    def test_monitoring_begins_and_ends(self) -> None:
        self.hostile()
        front_end = self.useFixture(FrontEnd())
        for action in (lambda: self.node.start_monitoring(front_end.configuration()), self.node.stop_monitoring):
            result = action()
            self.assertEqual((0, ""), (result.status, result.err))
