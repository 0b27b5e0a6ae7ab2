# SPDX-License-Identifier: Apache-2.0
"""Makes the guest unless it is there, runs the tests of tests/vm in it, and keeps what they told.

    python -m tools.vm RESULTS [FILTER]    RESULTS: the file to write, a subunit stream
"""

import shutil
import subprocess
import sys
import time
from pathlib import Path

from tools.debian import Failed
from tools.vm import source
from tools.vm.machine import TIMEOUT, Machine
from tools.vm.trees import REPOSITORY, Trees

CACHE = REPOSITORY / ".cache" / "vm"
CONSOLE_LINES = 40


def main(results: Path, tests: str) -> int:
    began = time.monotonic()
    trees = Trees(CACHE)
    if not trees.ready():
        say(began, "Debian packages, a machine and its guest are made; some minutes the first time")
        trees.make()
    machine = Machine(trees.qemu)
    source.write(machine.source, tests)
    accelerator = machine.accelerator()
    say(began, f"the guest boots ({accelerator})")
    try:
        status = machine.run(accelerator)
    except subprocess.TimeoutExpired:
        print(f"tools/vm: the guest did not turn itself off within {TIMEOUT} s", file=sys.stderr)
        status = 1
    ended = machine.log.read_text(errors="replace") if machine.log.exists() else ""
    if status or "vm: tests ended" not in ended:
        print("\n".join(ended.splitlines()[-CONSOLE_LINES:]), file=sys.stderr)
        print(f"tools/vm: the tests did not run to their end (QEMU's status {status}); all that the guest said: "
              f"{machine.log}", file=sys.stderr)
        status = 1
    if machine.results.exists():
        shutil.copy(machine.results, results)
    say(began, "the guest is off")
    return status


def say(began: float, words: str) -> None:
    print(f"[{time.monotonic() - began:4.0f}s] {words}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "."))
    except Failed as error:
        print(f"tools/vm: {error}", file=sys.stderr)
        sys.exit(1)
