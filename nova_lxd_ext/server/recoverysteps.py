# SPDX-License-Identifier: Apache-2.0
"""Decide on the recovery of requests that nova-compute did not finish. Pure."""

import enum
from collections.abc import Collection
from typing import NamedTuple

from nova.compute import task_states, vm_states

REBUILDS = frozenset({task_states.REBUILDING, task_states.REBUILD_BLOCK_DEVICE_MAPPING, task_states.REBUILD_SPAWNING})
SHELVINGS = frozenset({task_states.SHELVING, task_states.SHELVING_IMAGE_PENDING_UPLOAD,
                       task_states.SHELVING_IMAGE_UPLOADING})
UNSHELVINGS = frozenset({task_states.UNSHELVING, task_states.SPAWNING})
REVERTS = frozenset({"revert_resize", "finish_revert_resize"})
NOTHING_DONE = frozenset({task_states.IMAGE_BACKUP, task_states.UPDATING_PASSWORD})
SNAPSHOTS = frozenset({task_states.IMAGE_SNAPSHOT, task_states.IMAGE_BACKUP})
FROZEN = {task_states.PAUSING: vm_states.PAUSED, task_states.SUSPENDING: vm_states.SUSPENDED}


class Second(NamedTuple):
    """Describe the second request of a move, which the first one sends as its last step.

    :ivar host: whether it goes to the move's ``source_compute`` or ``dest_compute``
    """

    first: str
    method: str
    host: str


SECOND_REQUESTS = {task_states.RESIZE_MIGRATED: Second("resize_instance", "finish_resize", "dest_compute"),
                   task_states.RESIZE_REVERTING: Second("revert_resize", "finish_revert_resize", "source_compute")}


class Step(enum.Enum):
    """Name the recovery action for a server."""

    NOTHING = enum.auto()
    FORGET_MOVE = enum.auto()
    UNDO_MOVE = enum.auto()
    FINISH_MOVE = enum.auto()
    REVERT_MOVE = enum.auto()
    CONFIRM_MOVE = enum.auto()
    FINISH_EVACUATION = enum.auto()
    UNDO_EVACUATION = enum.auto()
    RECOVER_TASK = enum.auto()
    LEAVE_HOST = enum.auto()


MOVES = {task_states.RESIZE_PREP: Step.UNDO_MOVE, task_states.RESIZE_MIGRATING: Step.UNDO_MOVE,
         task_states.RESIZE_MIGRATED: Step.FINISH_MOVE, task_states.RESIZE_FINISH: Step.FINISH_MOVE,
         task_states.RESIZE_REVERTING: Step.REVERT_MOVE}


def here(task_state: str | None, vm_state: str, methods: Collection[str], *, moves: bool, unbegun: bool,
         evacuates: bool = False) -> Step:
    """Return the recovery step for a server that nova places on this host.

    :param methods: requests that this host did not finish
    :param moves: nova has a migration of the server
    :param unbegun: the second request of that migration has not begun, and no other host has claimed it
    :param evacuates: it is an evacuation to this host
    """
    if not methods:
        # A resize was requested and not begun. Nova would only clear the task state.
        return Step.FORGET_MOVE if unbegun and task_state in (None, task_states.RESIZE_PREP) else Step.NOTHING
    if evacuates and task_state is None and "rebuild_instance" in methods:
        return Step.FINISH_EVACUATION
    if moves and task_state in MOVES:
        return MOVES[task_state]
    if moves and "confirm_resize" in methods:
        return Step.CONFIRM_MOVE
    if task_state is not None:
        return Step.RECOVER_TASK
    return Step.LEAVE_HOST if vm_state == vm_states.SHELVED_OFFLOADED else Step.NOTHING


def elsewhere(task_state: str | None, vm_state: str, methods: Collection[str], others: Collection[str], *,
              evacuates: bool, leaving: bool = True) -> Step:
    """Return the recovery step for a server that moved away from this host, or was about to arrive.

    :param methods: requests that this host did not finish
    :param others: requests that another host has begun since
    :param leaving: the server's host has accepted the request to send it (nova's status of the migration)
    """
    # The start of nova-compute on the server's host clears the task state of a resize that this host prepares.
    prepared = task_state == task_states.RESIZE_PREP or (task_state is None and not leaving)
    # Only the server's new host is not recorded yet.
    rebuilt = task_state is None and vm_state in (vm_states.ACTIVE, vm_states.STOPPED)
    candidates = (
        (Step.FINISH_EVACUATION, "rebuild_instance" in methods and evacuates and rebuilt),
        (Step.UNDO_EVACUATION, "rebuild_instance" in methods and evacuates),
        (Step.FORGET_MOVE, "prep_resize" in methods and prepared),
        (Step.FINISH_MOVE, "resize_instance" in methods and task_state == task_states.RESIZE_MIGRATED
         and "finish_resize" not in others),
        (Step.REVERT_MOVE, bool(REVERTS.intersection(methods)) and task_state == task_states.RESIZE_REVERTING),
        (Step.CONFIRM_MOVE, "confirm_resize" in methods))
    return next((step for step, applies in candidates if applies), Step.NOTHING)
