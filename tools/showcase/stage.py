# SPDX-License-Identifier: Apache-2.0
"""Where the demo plays: on this machine's own devices, or in a namespace with emulated ones."""

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from containerhost.allocation.store import AllocationStore
from containerhost.inventory.scan import scan
from tools.cloud.hardware import NotEnough, Pair, choose
from tools.cloud.layout import CHECKOUT

# Another checkout may have its own demo up.
NAMESPACE = "demo-" + hashlib.sha256(str(CHECKOUT).encode()).hexdigest()[:6]
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FAKEHOST = (sys.executable, str(CHECKOUT / "tools" / "fakehost"))


class StageFailed(Exception):
    """The namespace with emulated hardware did not come up."""


def pairs() -> tuple[Pair, Pair]:
    """Two pairs of devices that no container has.

    :raises NotEnough: there are not so many here
    """
    return choose(scan().devices, AllocationStore().records())


def why_emulated() -> str | None:
    """Return what this machine lacks; None when the demo can use its own devices."""
    try:
        pairs()
    except NotEnough as reason:
        return str(reason)
    return None


def inside(command: Sequence[str]) -> list[str]:
    """Return the command line that runs ``command`` in the namespace."""
    return [*FAKEHOST, "--join", NAMESPACE, "--", *command]


def is_up() -> bool:
    return subprocess.run(inside(["true"]), stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0


def start(log: Path) -> None:
    """Make the namespace; it stays until :func:`stop`.

    :param log: for what it says, now and as long as it stays
    :raises StageFailed: it did not come up; with what it said
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        made = subprocess.run([*FAKEHOST, "--host", "small", "--name", NAMESPACE, "--detach"], timeout=60, check=False,
                              stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    if made.returncode:
        said = log.read_text(errors="replace")
        raise StageFailed(f"The namespace with emulated hardware did not come up:\n{said}")


def stop() -> None:
    """End the namespace and every process in it; nothing to end is fine."""
    subprocess.run([*FAKEHOST, "--stop", NAMESPACE], stdin=subprocess.DEVNULL, capture_output=True, check=False)


def end_on_signals() -> None:
    """Turn the first request to end into KeyboardInterrupt; later ones must not cut off the cleaning.

    A terminal and the parent both send it; the cleaning has limits of its own."""
    def interrupt(_number: int, _frame: object) -> None:
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in ENDING:
        signal.signal(number, interrupt)


@contextlib.contextmanager
def signals_passed_to(child: "subprocess.Popen[bytes]") -> Iterator[None]:
    """While the child works, an interrupt or a request to end is the child's to act on: it cleans up and ends."""
    def pass_on(number: int, _frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, number)

    former = {number: signal.signal(number, pass_on) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
