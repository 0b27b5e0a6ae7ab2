# SPDX-License-Identifier: Apache-2.0
"""Clean up by a child process after a block that does not end by itself."""

import contextlib
import os
import signal
from pathlib import Path

import fixtures
import testtools

from containerhost.operator.selftest.guardian import cleaned_if_killed
from tests.waiting import await_that


class GuardianTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.cleaned = Path(self.useFixture(fixtures.TempDir()).path, "cleaned")

    def test_leaves_a_block_that_ended(self) -> None:
        with cleaned_if_killed(self.cleaned.touch):
            pass
        self.assertFalse(self.cleaned.exists())

    def test_cleans_up_where_the_blocks_own_clean_up_is_interrupted(self) -> None:
        """By a second Ctrl-C."""
        with contextlib.suppress(KeyboardInterrupt), cleaned_if_killed(self.cleaned.touch):
            raise KeyboardInterrupt
        self.assertTrue(self.cleaned.exists())

    def test_cleans_up_after_a_killed_process(self) -> None:
        child = os.fork()
        if not child:
            with cleaned_if_killed(self.cleaned.touch):
                os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
        await_that(self.cleaned.exists, "it was cleaned up")
