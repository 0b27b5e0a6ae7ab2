# SPDX-License-Identifier: Apache-2.0
"""Rounds of copying a running container."""

from collections.abc import Sequence

import testtools

from containerhost.engines import copyrounds


class RoundsTest(testtools.TestCase):
    def numbers(self, seconds: Sequence[float], most: int = 5) -> list[int]:
        """Return the numbers of the rounds, which take so long."""
        now = [0.0]
        found = []
        for number in copyrounds.rounds("one to two", most, lambda: now[0]):
            found.append(number)
            now[0] += seconds[number - 1]
        return found

    def test_rounds_that_shrink_go_on_until_one_is_short(self) -> None:
        self.assertEqual([1, 2, 3], self.numbers((60, 30, 1.9)))

    def test_round_that_hardly_shrinks_is_the_last(self) -> None:
        self.assertEqual([1, 2, 3], self.numbers((60, 30, 22)))

    def test_number_of_rounds_has_a_limit(self) -> None:
        self.assertEqual([1, 2], self.numbers((60, 30), most=2))
        self.assertEqual([], self.numbers((), most=0))
