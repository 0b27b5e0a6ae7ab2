# SPDX-License-Identifier: Apache-2.0
"""Kill helper processes of LXD or Incus that wait for a container's tenant, or whose copy is no longer needed.

The daemon reaches the files of a running container by ``lxd forkfile``, and gives it a device by ``lxd forkmount``;
both act in the container's mount namespace. At a FIFO of the tenant they wait forever, and until they end the daemon
does not delete the container.

On pools without native snapshots the daemon copies a container into a snapshot by ``rsync``, which reads the
holes of sparse files. Nothing cancels that, not even the container's deletion.
"""

import contextlib
import os
import re
import signal
from collections.abc import Iterator

from containerhost.linux.daemonnodes import HOMES
from containerhost.linux.files import closing
from containerhost.linux.process.processes import ProcReadTimeout, is_hosts, namespace, pids

FILES, MOUNT, COPY = "forkfile", "forkmount", "rsync"
ROOTS = re.compile(r"/(?:[^/]+/)*storage-pools/[^/]+/containers/([^/]+)/")  # with the daemon's name of a container
NO_PROCESS = "0"  # last argument of a forkfile for a container that does not run


def end(pid: int) -> int:
    """Kill the helpers of a container that is about to end, and those whose container has already ended.

    :param pid: the container's first process; 0 if it is not running
    """
    return sum(kill(helper, pid) for helper in helpers())


def end_copies(container: str) -> int:
    """Kill the daemon's copies of a container into snapshots.

    :param container: the daemon's name for its directory
    """
    killed = 0
    for pid in pids():
        with contextlib.suppress(ProcessLookupError), closing(os.pidfd_open(pid)) as fd:
            if copied(pid) == container:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
                killed += 1
    return killed


def copied(pid: int) -> str | None:
    """Return the container that a process of the daemon copies on this host; None for other processes."""
    if not is_hosts(pid):
        return None
    program, *arguments = command(pid)
    found = ROOTS.fullmatch(arguments[-2]) if os.path.basename(program) == COPY and len(arguments) > 1 else None
    return found[1] if found else None


def command(pid: int) -> list[str]:
    """Return the program and the arguments of a process; an empty program if it has none or is gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return os.fsdecode(file.read()).split("\0")[:-1] or [""]
    return [""]


def kill(helper: int, pid: int) -> bool:
    """Kill a helper that waits for its tenant.

    :returns: False if it need not be killed, or has already ended
    """
    with contextlib.suppress(ProcessLookupError), closing(os.pidfd_open(helper)) as fd:
        if is_stuck(helper, pid):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
            return True
    return False


def helpers() -> Iterator[int]:
    return (pid for pid in pids() if action(pid))


def action(pid: int) -> list[str]:
    """Return a helper's arguments, from its kind on; none for other processes, and in other PID namespaces."""
    if not is_hosts(pid):
        return []
    program, *arguments = command(pid)
    return arguments if os.path.basename(program) in HOMES and arguments and arguments[0] in (FILES, MOUNT) else []


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
    """Return the mount namespace of a process; None if the process is gone or cannot be inspected."""
    try:
        return namespace(pid, "mnt")
    except ProcReadTimeout:
        return None
