# SPDX-License-Identifier: Apache-2.0
"""Prove that a machine that fails is reported with its steps and a seed that repeats it."""

from unittest import mock

import testtools
from hypothesis import strategies
from hypothesis.stateful import invariant, rule

from tests.model import frame


class Stack(frame.Machine):
    """Forget what is below the third entry: two pushes and a pop are right, a fourth push is not."""

    def __init__(self) -> None:
        super().__init__()
        self.real: list[int] = []
        self.model: list[int] = []

    @rule(value=strategies.integers(0, 9))
    def push(self, value: int) -> None:
        self.real = [*self.real, value][-3:]
        self.model.append(value)
        self.count("push")

    @rule()
    def pop(self) -> None:
        self.real, self.model = self.real[:-1], self.model[:-1]

    @invariant()
    def agree(self) -> None:
        assert self.real == self.model, "the stack forgot an entry"


class FrameTest(testtools.TestCase):
    class Planted(frame.ModelTest):
        machine = Stack

    def failure(self, **environment: str) -> str:
        test = self.Planted("test_sequences")
        with mock.patch.dict("os.environ", {frame.SECONDS: "0", **environment}):
            frame.first_seed.cache_clear()
            self.addCleanup(frame.first_seed.cache_clear)
            return str(self.assertRaises(frame.MachineFailed, test.test_sequences))

    def test_failure_has_shortest_steps_and_seed(self) -> None:
        text = self.failure(MODEL_SEED="7")
        self.assertIn("the stack forgot an entry", text)
        self.assertEqual(4, text.count("state.push(value=0)"), text)
        self.assertIn("MODEL_SEED=7 MODEL_SECONDS=0 python -m testtools.run", text)

    def test_same_seed_same_failure(self) -> None:
        def steps() -> list[str]:
            return [line for line in self.failure(MODEL_SEED="11").splitlines() if "state." in line]
        self.assertEqual(steps(), steps())
