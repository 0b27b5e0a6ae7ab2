# SPDX-License-Identifier: Apache-2.0
"""End helper processes of LXD or Incus that wait for a container's tenant.

The daemon reaches the files of a running container by ``lxd forkfile``, and gives it a device by ``lxd forkmount``;
both act in the container's mount namespace. At a FIFO that the tenant put there they wait without end, and until they
end the daemon does not delete the container.
"""

import contextlib
import os
import signal
from collections.abc import Iterator

from containerhost.linux.files import closing
from containerhost.process.daemonnodes import HOMES
from containerhost.process.processes import NoAnswer, is_hosts, namespace, pids

FILES, MOUNT = "forkfile", "forkmount"
NO_PROCESS = "0"  # last argument of a forkfile for a container that does not run


def end(pid: int) -> int:
    """Kill the helpers of a container that is about to end, and those whose container has ended already.

    :param pid: the container's first process; 0 if it does not run
    :returns: how many were killed
    """
    return sum(kill(helper, pid) for helper in helpers())


def kill(helper: int, pid: int) -> bool:
    """Kill a helper that waits for its tenant.

    :returns: False if it need not be killed, or has ended by itself
    """
    with contextlib.suppress(ProcessLookupError), closing(os.pidfd_open(helper)) as fd:
        if is_stuck(helper, pid):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
            return True
    return False


def helpers() -> Iterator[int]:
    return (pid for pid in pids() if action(pid))


def action(pid: int) -> list[str]:
    """Return the arguments of a helper, from its kind on; none of any other process. Only processes in this PID
    namespace count: none in a container is in it."""
    if not is_hosts(pid):
        return []
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        program, *arguments = os.fsdecode(file.read()).split("\0")[:-1] or [""]
        if os.path.basename(program) in HOMES and arguments and arguments[0] in (FILES, MOUNT):
            return arguments
    return []


def is_stuck(helper: int, pid: int) -> bool:
    arguments, space = action(helper), mounts(helper)
    if not arguments or space in (None, mounts(os.getpid())):
        return False
    if space == mounts(pid):
        return True
    return (arguments[0], arguments[-1]) != (FILES, NO_PROCESS) and not used(space)


def used(space: str | None) -> bool:
    """Return whether any process but the daemon's helpers is in a mount namespace."""
    return any(mounts(pid) == space and not action(pid) for pid in pids())


def mounts(pid: int) -> str | None:
    """Return the mount namespace of a process; None if there is no such process, or it cannot be looked at."""
    try:
        return namespace(pid, "mnt")
    except NoAnswer:
        return None
