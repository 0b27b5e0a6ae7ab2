# SPDX-License-Identifier: Apache-2.0
"""Call OpenNebula for the scenarios: its own commands for changes, a resident program for frequent reads."""

import contextlib
import json
import re
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast

from tools.oned.front_end import cli
from tools.oned.machine import Machine, MachineFailed

TIMEOUT = 300.0  # s for an action
POLL_INTERVAL = 0.3  # s
FAILED = re.compile(r"FAIL")
# Ruby takes half a second of a processor to load OpenNebula's library, which each command does.
LOOK = """
$LOAD_PATH << '/usr/lib/one/ruby'
require 'opennebula'
require 'json'
include OpenNebula
client = Client.new
kinds = { 'vm' => VirtualMachine, 'host' => Host, 'datastore' => Datastore, 'image' => Image, 'vms' => nil }
$stdout.sync = true
STDIN.each_line do |line|
  kind, number = JSON.parse(line)
  if kind == 'vms'
    pool = VirtualMachinePool.new(client, -2)
    error = pool.info
    answer = { 'pool' => pool.map { |vm| [vm.id, vm.state_str, vm.lcm_state_str] } }
  else
    one = kinds[kind].new(kinds[kind].build_xml(number), client)
    error = one.info
    answer = { 'hash' => one.to_hash }
    answer['state'] = one.state_str if one.respond_to?(:state_str)
    answer['lcm'] = one.lcm_state_str if one.respond_to?(:lcm_state_str)
  end
  puts JSON.generate(OpenNebula.is_error?(error) ? { 'error' => error.message } : answer)
end
"""


class One:
    def __init__(self, front: Machine) -> None:
        self._front = front
        self._looker: subprocess.Popen[str] | None = None

    def __call__(self, *words: str, given: str = "") -> str:
        return cli(self._front, *words, given=given)

    def create(self, kind: str, template: str, *more: str) -> str:
        """Create an object from a template.

        :returns: the new thing's ID
        """
        return self(f"one{kind}", "create", self.file(template), *more).split(":")[1].strip()

    def create_vms(self, template: str, count: int) -> list[str]:
        """Create VMs from a template.

        :returns: their IDs
        """
        answer = self("onevm", "create", self.file(template), "--multiple", str(count))
        return [line.split(":")[1].strip() for line in answer.splitlines() if ":" in line]

    def append(self, kind: str, number: str, attributes: str) -> None:
        self(f"one{kind}", "update", "--append", number, self.file(attributes))

    def file(self, text: str) -> str:
        """Create a file of the front-end that oneadmin can read."""
        with tempfile.NamedTemporaryFile("w", dir=self._front.home, prefix="file-", delete=False) as file:
            file.write(text)
        Path(file.name).chmod(0o644)
        return file.name

    # What is looked at.

    def look(self, kind: str, number: str = "") -> Any:
        """Ask OpenNebula's library on the front-end, which is loaded once.

        :raises MachineFailed: it is not there, or oned does not answer
        """
        if self._looker is None or self._looker.poll() is not None:
            words = self._front.there("env", "HOME=/var/lib/one", "LANG=C.UTF-8", "ruby", "-e", LOOK, user="oneadmin")
            self._looker = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        questions, answers = cast(IO[str], self._looker.stdin), cast(IO[str], self._looker.stdout)
        questions.write(json.dumps([kind, number]) + "\n")
        questions.flush()
        line = answers.readline()
        answer = json.loads(line) if line else {"error": "the program that asks OpenNebula ended"}
        if "error" in answer:
            raise MachineFailed(f"{kind} {number}: {answer['error']}")
        return answer

    def close(self) -> None:
        if self._looker is not None:
            with contextlib.suppress(BrokenPipeError):
                self._looker.communicate(timeout=10)
            self._looker = None

    def show(self, kind: str, number: str) -> Any:
        return self.look(kind, number)["hash"][kind.upper()]

    def state(self, vm: str) -> str:
        """Return the state of a VM, in the command's words: ``ACTIVE RUNNING``."""
        found = self.look("vm", vm)
        return f"{found['state']} {found['lcm']}"

    def vms(self) -> Mapping[str, str]:
        """Return the state of every VM that was not ended."""
        return {str(number): f"{state} {lcm}" for number, state, lcm in self.look("vms")["pool"]}

    def host(self, vm: str) -> str:
        return str(self.history(vm)["HOSTNAME"])

    def history(self, vm: str) -> Any:
        """Return the last record of where a VM is."""
        found = self.show("vm", vm)["HISTORY_RECORDS"]["HISTORY"]
        return found[-1] if isinstance(found, list) else found

    def is_placed(self, vm: str, host: str) -> bool:
        """Return whether a VM's disks have been brought to a host, or it runs there after a live migration."""
        last = self.history(vm)
        return bool(last["HOSTNAME"] == host and (int(last["PETIME"]) or int(last["RSTIME"])))

    def error(self, vm: str) -> str:
        found = self.show("vm", vm)["USER_TEMPLATE"]
        return str(found.get("ERROR", "")) if isinstance(found, dict) else ""

    # What is waited for.

    def await_state(self, vm: str, wanted: str, timeout: float = TIMEOUT, former: str = "") -> None:
        """Wait until a VM is in a state.

        :param former: the state that it leaves, which may be a failed one
        :raises MachineFailed: it is in another after that many seconds, or in a failed one
        """
        end = time.monotonic() + timeout
        while (state := self.state(vm)) != wanted:
            if time.monotonic() > end or (state != former and FAILED.search(state)):
                raise MachineFailed(f"VM {vm} is {state}, not {wanted}: {self.error(vm)}")
            time.sleep(POLL_INTERVAL)

    def over(self, vm: str, timeout: float = TIMEOUT) -> None:
        """Wait until a VM has ended: oned answers the command before the VM leaves the state that it was in."""
        self.await_state(vm, "DONE LCM_INIT", timeout, former=self.state(vm))

    def running(self, vm: str) -> None:
        self.await_state(vm, "ACTIVE RUNNING")

    def off(self, vm: str) -> None:
        self.await_state(vm, "POWEROFF LCM_INIT")
