# SPDX-License-Identifier: Apache-2.0
"""Start all members of a job, or remove all that was made and tell the reason.

What is made carries the job's id, and removal looks for the id: a request whose answer was lost is found too, and any
later process can remove the job.
"""

import dataclasses
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from hpcjob import files, keys
from hpcjob.errors import GangFailed, JobError, Leftover
from hpcjob.job import Job, Member

POLL_INTERVAL = 1.0
REMOVE_TIMEOUT = 180.0


@dataclasses.dataclass(frozen=True)
class State:
    """Tell how a member is: it runs, it failed for a reason, or neither yet."""

    running: bool = False
    failure: str = ""
    detail: str = ""
    host: str = ""


class Cloud(Protocol):
    """Start and remove members in one cloud. Every method may raise any error of the cloud's client library."""

    #: The cloud's name as the command line has it.
    name: str

    def validate(self, job: Job) -> None:
        """Find what the job file names. Makes nothing.

        :raises BadJob: the cloud does not have it
        """

    def reserve(self, job: Job, ident: str) -> list[Member]:
        """Make what gives the members their names and addresses; by rank."""

    def launch(self, job: Job, ident: str, contents: Sequence[Sequence[files.File]], check: Callable[[], None]
               ) -> None:
        """Start the members, each with its files. Call ``check`` between requests: it raises when time is over."""

    def states(self, ident: str) -> Mapping[int, State]:
        """Return the state of each member that exists, by rank."""

    def remove(self, ident: str) -> list[str]:
        """Ask for the removal of all that carries the id, and return the names of what was still there. Idempotent."""

    def of_others(self, ident: str) -> list[str]:
        """Return the names of members that this user sees but may not remove."""

    def reason(self, error: Exception) -> str | None:
        """Return what an error of the client library says, or None if it is none of the cloud's."""


def new_ident(job: Job) -> str:
    """Return an id that no other job has."""
    return f"{job.name}-{secrets.token_hex(4)}"


def start(cloud: Cloud, job: Job, ident: str, sleep: Callable[[float], None] = time.sleep,
          clock: Callable[[], float] = time.monotonic, before_remove: Callable[[], None] = lambda: None
          ) -> list[Member]:
    """Start the job and return its members with their hosts, when all of them run.

    :param before_remove: called once before anything is removed
    :raises BadJob: the cloud does not have what the job file names; nothing was made
    :raises GangFailed: a member failed or was deleted, the cloud refused a request, or the time limit was reached;
        everything is removed
    :raises Leftover: as before, and not everything could be removed
    """
    deadline = clock() + job.timeout

    def check() -> None:
        if clock() > deadline:
            raise GangFailed(f"time limit: not all {job.members} members run after {job.timeout} s"
                             f"{waiting(cloud, ident)}")

    try:
        cloud.validate(job)
    except Exception as error:
        reason = cloud.reason(error)
        if reason is None:
            raise
        raise GangFailed(f"{reason}; nothing was made") from error
    try:
        members = cloud.reserve(job, ident)
        check()
        key = keys.make(ident)
        cloud.launch(job, ident, [files.files(job, members, member.rank, key) for member in members], check)
        return _wait(cloud, ident, members, check, sleep)
    except BaseException as error:
        before_remove()
        _undo(cloud, ident, error, sleep, clock)
        reason = cloud.reason(error) if isinstance(error, Exception) else None
        if reason is not None:
            raise GangFailed(f"{reason}; all members are removed") from error
        if isinstance(error, GangFailed):
            raise GangFailed(f"{error}; all members are removed") from error
        raise


def waiting(cloud: Cloud, ident: str) -> str:
    """Return what the cloud says of members that do not run, for the message about the time limit."""
    try:
        late = {rank: state for rank, state in cloud.states(ident).items() if not state.running}
    except Exception as error:
        return f" ({cloud.reason(error) or error})"
    told = sorted({state.detail for state in late.values() if state.detail})
    return f"; {len(late)} are waiting" + (f": {'; '.join(told[:3])}" if told else "") if late else ""


def _wait(cloud: Cloud, ident: str, members: Sequence[Member], check: Callable[[], None], sleep: Callable[[float], None]
          ) -> list[Member]:
    while True:
        states = cloud.states(ident)
        for member in members:
            state = states.get(member.rank)
            if state is None:
                raise GangFailed(f"{member.name} (rank {member.rank}) was deleted while the job started")
            if state.failure:
                raise GangFailed(f"{member.name} (rank {member.rank}) failed: {state.failure}")
        if all(states[member.rank].running for member in members):
            return [dataclasses.replace(member, host=states[member.rank].host) for member in members]
        check()
        sleep(POLL_INTERVAL)


def _undo(cloud: Cloud, ident: str, cause: BaseException, sleep: Callable[[float], None], clock: Callable[[], float]
          ) -> None:
    try:
        remove(cloud, ident, sleep, clock)
    except Leftover as error:
        reason = (cloud.reason(cause) if isinstance(cause, Exception) else None) or str(cause) or type(cause).__name__
        raise Leftover(f"{reason}. {error}") from cause


def remove(cloud: Cloud, ident: str, sleep: Callable[[float], None] = time.sleep,
           clock: Callable[[], float] = time.monotonic) -> bool:
    """Remove all that carries the id. Idempotent. The cloud must say twice that it is gone.

    A request that was interrupted may take effect after the first query.

    :returns: whether there was anything
    :raises Leftover: it is not gone after ``REMOVE_TIMEOUT`` seconds
    """
    deadline, gone, left, reason = clock() + REMOVE_TIMEOUT, 0, ["members that could not be listed"], ""
    found = False
    while gone < 2:
        try:
            left = cloud.remove(ident)
            found = found or bool(left)
            reason = ""
            gone = 0 if left else gone + 1
        except JobError:
            raise
        except Exception as error:
            # The cloud may answer again before the deadline.
            gone, reason = 0, f": {cloud.reason(error) or repr(error)}"
        if gone < 2:
            if clock() > deadline:
                raise Leftover(f"not removed after {REMOVE_TIMEOUT:g} s: {', '.join(left)}{reason}. Try again: "
                               f"hpcjob delete {cloud.name} {ident}")
            sleep(POLL_INTERVAL)
    return found
