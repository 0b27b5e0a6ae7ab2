# SPDX-License-Identifier: Apache-2.0
"""Run a state machine of hypothesis as a test, in rounds of which each has a seed.

At the gate the number of rounds is fixed, so that a commit has one result on machines of any speed; at the exhaustive
level rounds follow each other until a time is over.
"""

import functools
import hashlib
import itertools
import logging
import os
import subprocess
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import hypothesis
import testtools
from hypothesis import stateful
from hypothesis.internal.conjecture import engine, providers
from testtools.content import text_content

REPOSITORY = Path(__file__).parents[2]
SECONDS, SEED = "MODEL_SECONDS", "MODEL_SEED"
# Sequences of one round. A round always runs to its end: what a seed finds does not depend on the machine's speed.
SEQUENCES = 10
STEPS = 40
# Not hypothesis' explanation of failures: for that it traces each line, which takes most of the time.
PHASES = (hypothesis.Phase.generate, hypothesis.Phase.shrink)
MINIMIZE_SECONDS = 60  # to find the shortest sequence that fails; hypothesis takes 300


def seconds() -> float | None:
    """Return the time for each machine: ``MODEL_SECONDS``. None where it has a number of rounds instead."""
    return float(os.environ[SECONDS]) if SECONDS in os.environ else None


@functools.cache
def first_seed() -> int:
    """Return ``MODEL_SEED``, or one that is the same for everybody who tests this commit; without git it is 0."""
    if SEED in os.environ:
        return int(os.environ[SEED])
    found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=REPOSITORY, capture_output=True, check=False)
    return int.from_bytes(hashlib.sha256(found.stdout).digest()[:4]) if found.returncode == 0 else 0


class Machine(stateful.RuleBasedStateMachine):
    """Count what the rules came to, so that a rule that never does anything shows.

    :cvar counts: how often each outcome was seen, by what :meth:`count` was called with
    """

    counts: ClassVar[Counter[str]]

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        cls.counts = Counter()

    def count(self, outcome: str) -> None:
        type(self).counts[outcome] += 1


class MachineFailed(AssertionError):
    """A machine's invariant does not hold; says after which steps, and how to repeat them."""


class ModelTest(testtools.TestCase):
    """Run one machine; a module imports ``frame``, not this class, which has no machine to run.

    :cvar steps: the longest sequence
    :cvar rounds: how many run where no time is set
    """

    machine: ClassVar[type[Machine]]
    steps = STEPS
    rounds = 1

    def test_sequences(self) -> None:
        """Run :attr:`rounds` rounds of sequences, or as many as end within :func:`seconds`, and at least one.

        :raises MachineFailed: with the shortest sequence that hypothesis found
        """
        logging.disable(logging.CRITICAL)  # of the failure's last run too: the steps tell it
        self.addCleanup(logging.disable, logging.NOTSET)
        limit, began = seconds(), time.monotonic()
        for number in itertools.count():
            if number and (number == self.rounds if limit is None else time.monotonic() >= began + limit):
                break
            self.run_round(first_seed() + number)
        lines = (f"{count:8} {outcome}" for outcome, count in sorted(self.machine.counts.items()))
        self.addDetail("outcomes", text_content("\n".join(lines)))

    def run_round(self, seed: int) -> None:
        settings = hypothesis.settings(
            max_examples=SEQUENCES, stateful_step_count=self.steps, database=None, deadline=None, print_blob=False,
            phases=PHASES, report_multiple_bugs=False, suppress_health_check=list(hypothesis.HealthCheck))

        def factory() -> Machine:
            return self.machine()

        try:
            # Without the numbers that hypothesis finds in the loaded modules, which depend on the rounds before.
            with (mock.patch.object(engine, "MAX_SHRINKING_SECONDS", MINIMIZE_SECONDS),
                  mock.patch.object(providers, "_get_local_constants", providers.Constants)):
                stateful.run_state_machine_as_test(hypothesis.seed(seed)(factory), settings=settings)
        except Exception as error:
            raise MachineFailed(
                f"{self.machine.__name__}: {first_line(error)}\n{''.join(traceback.format_exception(error))}\n"
                f"Repeat: PYTHONHASHSEED={os.environ.get('PYTHONHASHSEED', 'random')} {SEED}={seed} {SECONDS}=0 "
                f"python -m testtools.run {self.id()}") from None


def first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
