# SPDX-License-Identifier: Apache-2.0
"""Scripts that a driver installs, started as oned starts them: two of each kind, all at the exhaustive level.

A fork server runs most actions of other tests.
"""

import re
from pathlib import Path

from onedriver import actions
from onedriver.setup import remotes
from tests import levels
from tests.functional_one.node import Node, Result
from tests.functional_one.vms import Machine
from tests.unit.onedriver.samples import ARGV

BOOT = 2
CONTROL = "monitord-client_control.sh"


class StartsContract:
    """Beside a test case with a ``node`` that has all scripts.

    The host has no VM and no disk of one, so that nothing changes. That a process of the fork server tells the same is
    what the other tests stand on.
    """

    node: Node

    def test_scripts_are_started_and_tell_what_the_fork_server_tells(self) -> None:
        files = list(remotes.files(self.node.driver))
        kinds = [file.parts[0] for file in files]
        first = {place for kind in set(kinds) for place in range(kinds.index(kind), kinds.index(kind) + 2)}
        for file in levels.some(f"starts of {self.node.driver}", files, first):
            self.node.forks = False
            started = self.call(file)
            self.node.forks = True
            forked = self.call(file)
            self.assertIn(started.status, (0, 1, 2, 3), (file, started))
            self.assertNotIn("a mistake in the driver", started.err, file)
            self.assertEqual((started.status, started.err), (forked.status, forked.err), file)
            if file.parts[0] != "im":  # a probe reports some data only in some rounds
                self.assertEqual(without_numbers(started.out), without_numbers(forked.out), file)

    def call(self, file: Path) -> Result:
        """Call a script with the arguments and the input that oned gives it.

        :param file: below ``remotes``
        """
        kind, _, *below = file.parts
        if kind == "vmm":
            return self.vmm(file.name)
        if file.name == CONTROL:
            return self.node.stop_monitoring()
        if kind == "im":
            return self.node.probe("/".join(below[:-1]))
        return self.front_end(kind, file.name)

    def vmm(self, name: str) -> Result:
        action = actions.LOCAL_NAMES.get(name, name)
        machine = Machine()
        argv = [] if action in actions.IN_SCRIPTS else ARGV["vmm"][action]
        return self.node.run(name, argv, machine.deployment(BOOT) if action == "deploy" else machine.message(BOOT))

    def front_end(self, kind: str, name: str) -> Result:
        """Call a script of the front-end."""
        raise NotImplementedError


def without_numbers(text: str) -> str:
    """Return what a script printed without its numbers: how much room there is changes from call to call."""
    return re.sub(r"[0-9]+", "N", text)
