# SPDX-License-Identifier: Apache-2.0
"""Define the states of a device's allocation, the transitions between them, and recovery after a crash. Pure.

::

    FREE ──claim──▶ CLAIMED ──prepare──▶ PREPARED ──attach──▶ ATTACHED ◀──▶ DETACHED
     ▲                 └─────────────────────┴────────┬───────────┴──────────────┘
     ├──────────────── release ──────────────────▶ CLEANING
     └──────────────── operator ────────────────── BLOCKED

The record has the new state before the host changes, so a state is an upper bound of what happened to the device.
"""

import enum
from collections.abc import Mapping

from containerhost.errors import DeviceHeld


class State(enum.StrEnum):
    """Name the stage of a device's allocation, which is recorded before the host changes.

    :cvar FREE: no record
    :cvar CLAIMED: the device is unchanged, and no container has had it
    :cvar PREPARED: its settings may have been changed, and no container has had it
    :cvar ATTACHED: a container may have it, or had it
    :cvar DETACHED: it stays allocated, but is detached from its consumer's running container
    :cvar CLEANING: its container was detached from it; it is being cleaned, or its cleaning must be repeated
    :cvar BLOCKED: it could not be cleaned; the record has the reason
    """

    FREE = "free"
    CLAIMED = "claimed"
    PREPARED = "prepared"
    ATTACHED = "attached"
    DETACHED = "detached"
    CLEANING = "cleaning"
    BLOCKED = "blocked"


# A state may be written again, because each step is idempotent.
TRANSITIONS: Mapping[State, frozenset[State]] = {
    State.FREE: frozenset({State.CLAIMED}),
    # A device without settings is attached without preparation.
    State.CLAIMED: frozenset({State.PREPARED, State.ATTACHED, State.CLEANING, State.BLOCKED, State.FREE}),
    State.PREPARED: frozenset({State.ATTACHED, State.CLEANING, State.BLOCKED}),
    State.ATTACHED: frozenset({State.DETACHED, State.CLEANING, State.BLOCKED}),
    State.DETACHED: frozenset({State.ATTACHED, State.CLEANING, State.BLOCKED}),
    # Before it is clean, only its last consumer may attach it again.
    State.CLEANING: frozenset({State.FREE, State.BLOCKED, State.ATTACHED}),
    # To FREE only by the operator, after a manual cleaning; to ATTACHED only if the consumer's container still runs,
    # and may still have it.
    State.BLOCKED: frozenset({State.CLEANING, State.FREE, State.ATTACHED}),
}


def require_transition(device_id: str, old: State, new: State) -> None:
    """Refuse a transition that the state machine does not permit.

    :raises DeviceHeld: the state machine has no such transition
    """
    if new is not old and new not in TRANSITIONS[old]:
        raise DeviceHeld(f"device {device_id} is {old}, so it cannot become {new}")


class Action(enum.StrEnum):
    """Name what recovery does with an allocation that no process is working on.

    :cvar KEEP: the consumer keeps the device as it is
    :cvar REBIND: it keeps the device; its driver is bound again if a crash left it unbound
    :cvar DROP: remove the record; the device was not changed
    :cvar CLEAN: clean the device, then free it, or block it with the reason
    """

    KEEP = "keep"
    REBIND = "rebind"
    DROP = "drop"
    CLEAN = "clean"


_CASES = ((True, True), (True, False), (False, True), (False, False))  # same boot, consumer exists
_ACTIONS: Mapping[State, tuple[Action, ...]] = {
    # The grants were never handed out, so the consumer does not have the device.
    State.CLAIMED: (Action.DROP,) * 4,
    State.PREPARED: (Action.CLEAN,) * 4,
    # A boot binds the drivers, and the start of the container prepares the device again.
    State.ATTACHED: (Action.REBIND, Action.CLEAN, Action.KEEP, Action.CLEAN),
    # The next start of the container decides whether it is attached again.
    State.DETACHED: (Action.KEEP, Action.CLEAN, Action.KEEP, Action.CLEAN),
    # The consumer released it before the cleaning began.
    State.CLEANING: (Action.CLEAN,) * 4,
    # Kept for the operator, or until the containers that may have it end; the reason may have ended with the boot.
    State.BLOCKED: (Action.KEEP, Action.CLEAN, Action.CLEAN, Action.CLEAN),
}
RECOVERY = {(state, *case): action for state, actions in _ACTIONS.items()
            for case, action in zip(_CASES, actions, strict=True)}


def recovery(state: State, *, same_boot: bool, exists: bool, configured: bool = False, ended: bool = False) -> Action:
    """Return the recovery action for an allocation that no process is working on.

    :param same_boot: the host has not restarted since the state was written; also if that is unknown
    :param exists: the consumer's container is known to exist
    :param configured: the configuration of a container on the engine names the device. It outweighs every other sign:
        nothing is taken from a container that may have it
    :param ended: of :class:`containerhost.allocation.record.Allocation`: what kept the device from being cleaned ended
    """
    if configured:
        return Action.KEEP if state is State.BLOCKED else RECOVERY[State.ATTACHED, same_boot, True]
    return Action.CLEAN if state is State.BLOCKED and ended else RECOVERY[state, same_boot, exists]


def is_interrupted(state: State, *, same_boot: bool, exists: bool, ended: bool = False) -> bool:
    """Return whether recovery frees an allocation that no process is working on.

    One that was blocked in this boot is freed only after the containers that may have had it have ended. Otherwise
    every round of monitoring would clean and block it again. The parameters are those of :func:`recovery`.
    """
    if state is State.BLOCKED and same_boot and not ended:
        return False
    return recovery(state, same_boot=same_boot, exists=exists, ended=ended) in (Action.DROP, Action.CLEAN)
