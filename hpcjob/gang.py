# SPDX-License-Identifier: Apache-2.0
"""Start all members of a job, or remove everything created and report the reason. Replace a broken one.

Created objects have the job's id, and removal searches for the id: so an object is found even if the answer to its
creation was lost, and any later process can remove the job.
"""

import dataclasses
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from hpcjob import files, keys
from hpcjob.errors import GangFailed, Intact, JobError, Leftover, Vacant
from hpcjob.job import Job, Member
from hpcjob.keys import KeyPair

POLL_INTERVAL = 1.0
REMOVE_TIMEOUT = 180.0


@dataclasses.dataclass(frozen=True)
class State:
    """Describe a member: it runs, it failed for a reason, or neither yet.

    :ivar broken: whether it failed permanently, unlike one that was stopped or is being moved
    """

    running: bool = False
    failure: str = ""
    detail: str = ""
    host: str = ""
    broken: bool = False


class Cloud(Protocol):
    """Start and remove members in one cloud. Every method may raise any error of the cloud's client library."""

    #: The cloud's name as the command line has it.
    name: str
    #: What the operator does where a member is not removed because its host does not answer.
    host_is_down: str

    def validate(self, job: Job) -> None:
        """Find the objects of the job file. Creates nothing.

        :raises BadJob: the cloud lacks an object
        """

    def reserve(self, job: Job, ident: str) -> list[Member]:
        """Create the objects that provide the members' names and addresses; return these by rank."""

    def launch(self, job: Job, ident: str, contents: Sequence[Sequence[files.File]], check: Callable[[], None]
               ) -> None:
        """Start the members, each with its files. Call ``check`` between requests: it raises at the time limit."""

    def states(self, ident: str) -> Mapping[int, State]:
        """Return the state of each member that exists, by rank."""

    def remove(self, ident: str) -> list[str]:
        """Request the removal of everything with the id, and return the names of what still existed. Idempotent."""

    def find_reserved(self, ident: str, member: Member) -> None:
        """Find the objects of ``reserve`` for a member and for its job. After ``validate``; changes nothing.

        :raises BadJob: the cloud lacks an object
        """

    def remove_member(self, ident: str, member: Member) -> list[str]:
        """Request the removal of one member, and return what still holds its address. Idempotent."""

    def launch_member(self, job: Job, ident: str, member: Member, contents: Sequence[files.File],
                      check: Callable[[], None]) -> None:
        """Start a member whose address is free, not on ``member.host``. After ``find_reserved``."""

    def of_others(self, ident: str) -> list[str]:
        """Return the names of members that this user can see but not remove."""

    def reason(self, error: Exception) -> str | None:
        """Return the message of a client library's error; None for other errors."""


def new_ident(job: Job) -> str:
    """Return a unique id."""
    return f"{job.name}-{secrets.token_hex(4)}"


def start(cloud: Cloud, job: Job, ident: str, sleep: Callable[[float], None] = time.sleep,
          clock: Callable[[], float] = time.monotonic, before_remove: Callable[[], None] = lambda: None,
          key: KeyPair | None = None) -> list[Member]:
    """Start the job, and return its members with their hosts when all of them run.

    :param before_remove: called once before anything is removed
    :raises BadJob: the cloud lacks an object of the job file; nothing was created
    :raises GangFailed: a member failed or was deleted, the cloud refused a request, or the time limit was reached;
        everything is removed
    :raises Leftover: as before, but not everything could be removed
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
        raise GangFailed(f"{reason}; nothing was created") from error
    try:
        members = cloud.reserve(job, ident)
        check()
        key = key or keys.make(ident)
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
    """Describe the members that do not run yet, for the message about the time limit."""
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
    """Remove everything with the id. Idempotent. The cloud must confirm twice that it is gone.

    A request that was interrupted may take effect after the first query.

    :returns: whether anything existed
    :raises Leftover: it is not gone after ``REMOVE_TIMEOUT`` seconds
    """
    advice = f"Try again: hpcjob delete {cloud.name} {ident}"
    return _until_gone(cloud, lambda: cloud.remove(ident), advice, sleep, clock)


def _until_gone(cloud: Cloud, ask: Callable[[], list[str]], advice: str, sleep: Callable[[float], None],
                clock: Callable[[], float]) -> bool:
    deadline, gone, left, reason = clock() + REMOVE_TIMEOUT, 0, ["members that could not be listed"], ""
    found = False
    while gone < 2:
        try:
            left = ask()
            found = found or bool(left)
            reason = ""
            gone = 0 if left else gone + 1
        except JobError:
            raise
        except Exception as error:
            # The cloud may respond again before the deadline.
            gone, reason = 0, f": {cloud.reason(error) or repr(error)}"
        if gone < 2:
            if clock() > deadline:
                raise Leftover(f"not removed after {REMOVE_TIMEOUT:g} s: {', '.join(left)}{reason}. {advice}")
            sleep(POLL_INTERVAL)
    return found


def replace(cloud: Cloud, job: Job, ident: str, members: Sequence[Member], rank: int, key: KeyPair, force: bool = False,
            sleep: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic,
            before_remove: Callable[[Member], None] = lambda member: None) -> Member:
    """Recreate one member on another host, with its rank, name, address and keys; return it when it runs. Repeatable.

    :param members: of the job, as started; ``host`` of the rank is avoided if it has no member now
    :param before_remove: called once with the member and the host to avoid before it is removed
    :raises GangFailed: the cloud lacks a required object, or refused a request; nothing was changed
    :raises Intact: the member is not broken, and ``force`` is not set; nothing was changed
    :raises Vacant: the old member is removed or being removed, and no new one runs
    """
    member = members[rank]
    try:
        cloud.validate(job)
        cloud.find_reserved(ident, member)
        state = cloud.states(ident).get(rank)
    except Exception as error:
        reason = _reason(cloud, error)
        if reason is None:
            raise
        raise GangFailed(f"{reason}; nothing was changed") from error
    anew = force or needs_replacement(member, state)
    deadline = clock() + job.timeout

    def check() -> None:
        if clock() > deadline:
            raise GangFailed(f"time limit: {member.name} does not run after {job.timeout} s{waiting(cloud, ident)}")

    again = f"hpcjob replace {cloud.name} {ident} {rank}" + (" --force" if force else "")
    if anew:
        member = dataclasses.replace(member, host=(state.host if state else "") or member.host)
        before_remove(member)
    try:
        if anew:
            _until_gone(cloud, lambda: cloud.remove_member(ident, member), cloud.host_is_down, sleep, clock)
            again = again.removesuffix(" --force")  # the option would remove the new member, too
            deadline = clock() + job.timeout
            cloud.launch_member(job, ident, member, files.files(job, members, rank, key), check)
        return _wait(cloud, ident, [member], check, sleep)[0]
    except Exception as error:
        reason = _reason(cloud, error)
        if reason is None:
            raise
        raise Vacant(f"{reason}. All other members are unchanged. Continue with: {again}") from error


def _reason(cloud: Cloud, error: Exception) -> str | None:
    return str(error) if isinstance(error, JobError) else cloud.reason(error)


def needs_replacement(member: Member, state: State | None) -> bool:
    """Return whether to recreate a member; False if it is about to run.

    :raises Intact: it runs, or was stopped temporarily
    """
    if state is None or state.broken:
        return True
    if state.running or state.failure:
        how = "runs" if state.running else f"is intact: {state.failure}"
        raise Intact(f"{member.name} {how} (host {state.host or 'unknown'}), and nothing was changed: --force replaces "
                     f"it nevertheless, for example if its host has failed")
    return False
