# SPDX-License-Identifier: Apache-2.0
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import fixtures
import testtools

from onedriver.monitor import Type
from onedriver.node import poll_loop, probe_directory
from onedriver.node.poll_loop import PollLoop
from onedriver.node.probe_directory import Found

OTHERS = ("RUNNING",) * 19


def listed(states: Sequence[str], *, complete: bool = False) -> Found:
    lines = [f'VM=[ ID="{number}", STATE="{state}" ]' for number, state in enumerate(states)]
    return Found(True, "\n".join(['SYNC_STATE="yes"'] * complete + lines))


class StateChangesTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.sent: list[str] = []
        self.poll_loop = PollLoop(Path(), [], b"", Path(), Path())

    def send(self, kind: Type, success: bool, text: str) -> None:
        self.sent.append(text)

    def round(self, found: Found, send: poll_loop.Send | None = None) -> None:
        with mock.patch.object(probe_directory, "run", return_value=found):
            self.poll_loop.once(Type.STATE_VM, send or self.send)

    def test_unchanged_state_sent_only_in_complete_lists(self) -> None:
        """oned writes to its database for every state: 400 times a second with 2,000 VMs, if all are always sent."""
        self.useFixture(fixtures.MonkeyPatch("onedriver.node.poll_loop.RESEND_AGES", ()))
        on, off = (*OTHERS, "RUNNING"), (*OTHERS, "POWEROFF")
        for found in (listed(on), listed(on), listed(off), listed(OTHERS), listed(off), listed(off, complete=True)):
            self.round(found)
        self.assertEqual([20, 1, 1, 20], [text.count("VM=") for text in self.sent])
        self.assertEqual('VM=[ ID="19", STATE="POWEROFF" ]', self.sent[1])

    def test_changed_state_resent_few_times(self) -> None:
        """oned ignores a state for 30 s after an action, but writes to its database for each one."""
        changes, sent = poll_loop.StateChanges(), []
        for now in range(0, 170, 5):
            if text := changes.of("VM=1", now):
                sent.append(now)
                changes.was_sent(text, now)
        self.assertEqual([0, 20, 35, 65], sent)

    def test_state_resent_after_failed_send(self) -> None:
        self.useFixture(fixtures.MonkeyPatch("onedriver.node.poll_loop.RESEND_AGES", ()))
        self.useFixture(fixtures.FakeLogger())
        self.round(listed(OTHERS), mock.Mock(side_effect=ConnectionRefusedError("away")))
        self.round(listed(OTHERS))
        self.assertEqual([19], [text.count("VM=") for text in self.sent])

    def test_all_resent_although_no_list_is_complete(self) -> None:
        """Lists are incomplete while an action works on any VM, perhaps for hours: oned may have another state."""
        self.useFixture(fixtures.MonkeyPatch("onedriver.node.poll_loop.RESEND_AGES", ()))
        self.useFixture(fixtures.FakeLogger())
        refused = mock.Mock(side_effect=ConnectionRefusedError("away"))
        for now, send in ((0, None), (170, None), (201, refused), (206, None), (211, None), (400, None), (407, None)):
            with mock.patch("time.monotonic", return_value=float(now)):
                self.round(listed((*OTHERS, "POWEROFF") if now == 170 else OTHERS), send)
        self.assertEqual([19, 1, 19, 19], [text.count("VM=") for text in self.sent])

    def test_failed_probe_reported(self) -> None:
        self.round(Found(False, "probe failed"))
        self.assertEqual(["probe failed"], self.sent)
