# SPDX-License-Identifier: Apache-2.0
"""Start commands in containers as oned does, and read their outcome."""

import base64
import shlex

from onedriver.node import single_instance
from tests.functional_one.node import Result
from tests.functional_one.vms import Machine
from tests.waiting import await_that

RUNNING = 17  # any LCM state in which commands are run


class Commands:
    """Beside a test case with a ``node`` and ``inside``."""

    def exec(self, machine: Machine, command: str, stdin: bytes = b"") -> Result:
        """As oned writes it: the command quoted, its input in base64 or left out."""
        line = f"exec {machine.id} node1 {shlex.quote(command)} {base64.b64encode(stdin).decode()}"
        script = f"{self.node.remotes}/vmm/{self.node.driver}/{line}"
        return self.node.command(f"cat << 'EOT' | {script}\n{machine.message(RUNNING)}\nEOT")

    def begun(self, machine: Machine, command: str, stdin: bytes = b"") -> None:
        result = self.exec(machine, command, stdin)
        self.assertEqual((0, "", ""), (result.status, result.out, result.err))

    def outcome(self) -> str:
        """Return what the probe reports, once it reports something."""
        found: list[str] = []

        def told() -> bool:
            found.append(self.node.probe("vm/execution").out)
            return bool(found[-1].strip())

        await_that(told, "the command's end is told")
        return found[-1].strip()

    def running(self, machine: Machine, program: str) -> bool:
        return bool(self.inside(machine, "pidof", program).strip())

    def has_command(self, machine: Machine) -> bool:
        connection = single_instance.connected(f"one-command/{machine.name}")
        if connection:
            connection.close()
        return connection is not None

    def cancelled(self, machine: Machine) -> None:
        result = self.node.run("exec_cancel", [str(machine.id), "node1"], machine.message(RUNNING))
        self.assertEqual((0, ""), (result.status, result.err))

    @staticmethod
    def stderr(outcome: str) -> bytes:
        return base64.b64decode(outcome.partition('STDERR="')[2].partition('"')[0])
