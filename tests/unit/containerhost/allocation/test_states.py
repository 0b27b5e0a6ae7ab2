# SPDX-License-Identifier: Apache-2.0
import testtools

from containerhost.allocation.states import RECOVERY, TRANSITIONS, Action, State, recovery, require_transition
from containerhost.errors import DeviceHeld

# state: same boot and exists, same boot and gone, other boot and exists, other boot and gone
ROWS = {
    State.CLAIMED: (Action.DROP, Action.DROP, Action.DROP, Action.DROP),
    State.PREPARED: (Action.CLEAN, Action.CLEAN, Action.CLEAN, Action.CLEAN),
    State.ATTACHED: (Action.REBIND, Action.CLEAN, Action.KEEP, Action.CLEAN),
    State.DETACHED: (Action.KEEP, Action.CLEAN, Action.KEEP, Action.CLEAN),
    State.CLEANING: (Action.CLEAN, Action.CLEAN, Action.CLEAN, Action.CLEAN),
    State.BLOCKED: (Action.KEEP, Action.CLEAN, Action.CLEAN, Action.CLEAN),
}
CASES = ((True, True), (True, False), (False, True), (False, False))


class TestRecovery(testtools.TestCase):
    def test_every_row(self):
        self.assertEqual(set(State) - {State.FREE}, set(ROWS))
        self.assertEqual(len(ROWS) * len(CASES), len(RECOVERY))
        for state, actions in ROWS.items():
            for (same_boot, exists), action in zip(CASES, actions, strict=True):
                found = recovery(state, same_boot=same_boot, exists=exists)
                self.assertEqual(action, found, (state, same_boot, exists))

    def test_nothing_is_taken_from_a_container_whose_configuration_has_it(self):
        for state in ROWS:
            for same_boot, exists in CASES:
                self.assertIn(recovery(state, same_boot=same_boot, exists=exists, configured=True),
                              (Action.KEEP, Action.REBIND))

    def test_what_a_container_may_have_had_is_never_dropped(self):
        for state in (State.PREPARED, State.ATTACHED, State.DETACHED, State.CLEANING, State.BLOCKED):
            for same_boot, exists in CASES:
                self.assertNotEqual(Action.DROP, recovery(state, same_boot=same_boot, exists=exists))


class TestTransitions(testtools.TestCase):
    def test_every_pair(self):
        allowed = {"free claimed", "claimed prepared", "claimed attached", "claimed cleaning", "claimed blocked",
                   "claimed free", "prepared attached", "prepared cleaning", "prepared blocked", "attached cleaning",
                   "attached blocked", "cleaning free", "cleaning blocked", "cleaning attached", "blocked cleaning",
                   "blocked free", "blocked attached", "attached detached", "detached attached", "detached cleaning",
                   "detached blocked"}
        for old in State:
            for new in State:
                if old is new or f"{old} {new}" in allowed:
                    require_transition("0000:3b:00.0", old, new)
                else:
                    error = self.assertRaises(DeviceHeld, require_transition, "0000:3b:00.0", old, new)
                    self.assertIn(f"is {old}, so it cannot become {new}", str(error))

    def test_only_a_clean_device_becomes_free(self):
        """Or one that nobody was given, or that the operator cleaned."""
        self.assertEqual({State.CLAIMED, State.CLEANING, State.BLOCKED},
                         {old for old, news in TRANSITIONS.items() if State.FREE in news})
