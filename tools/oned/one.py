"""What the scenarios ask of OpenNebula, by its own commands on the front-end."""

import json
import re
import time
from typing import Any

from tools.oned.front_end import cli
from tools.oned.machine import Machine, MachineFailed

TIMEOUT = 600.0  # s for an action
POLL_INTERVAL = 0.5  # s
FAILED = re.compile(r"FAIL")


class One:
    def __init__(self, front: Machine) -> None:
        self._front = front

    def __call__(self, *words: str, given: str = "") -> str:
        return cli(self._front, *words, given=given)

    def create(self, kind: str, template: str, *more: str) -> str:
        """:returns: the new thing's ID"""
        return self(f"one{kind}", "create", self._file(template), *more).split(":")[1].strip()

    def append(self, kind: str, number: str, attributes: str) -> None:
        self(f"one{kind}", "update", "--append", number, self._file(attributes))

    def _file(self, text: str) -> str:
        file = self._front.home / "template"
        file.write_text(text)
        return str(file)

    def show(self, kind: str, number: str) -> Any:
        return json.loads(self(f"one{kind}", "show", "--json", number))[kind.upper()]

    def state(self, vm: str) -> str:
        """Of a VM, in the command's words: ``ACTIVE RUNNING``."""
        text = self("onevm", "show", vm)
        found = {key: re.search(rf"(?m)^{key} +: (\S+)", text) for key in ("STATE", "LCM_STATE")}
        return " ".join(match[1] if match else "-" for match in found.values())

    def host(self, vm: str) -> str:
        return str(re.search(r"(?m)^HOST +: (\S+)", self("onevm", "show", vm))[1])  # type: ignore[index]

    def await_state(self, vm: str, wanted: str) -> None:
        """:raises MachineFailed: it is in another after :data:`TIMEOUT` seconds, or in a failed one"""
        end = time.monotonic() + TIMEOUT
        while (state := self.state(vm)) != wanted:
            if time.monotonic() > end or FAILED.search(state):
                raise MachineFailed(f"VM {vm} is {state}, not {wanted}: {self.error(vm)}")
            time.sleep(POLL_INTERVAL)

    def running(self, vm: str) -> None:
        self.await_state(vm, "ACTIVE RUNNING")

    def off(self, vm: str) -> None:
        self.await_state(vm, "POWEROFF LCM_INIT")

    def error(self, vm: str) -> str:
        found = self.show("vm", vm)["USER_TEMPLATE"]
        return str(found.get("ERROR", "")) if isinstance(found, dict) else ""
