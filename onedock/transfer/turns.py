# SPDX-License-Identifier: Apache-2.0
"""Run the transfer actions of a VM one at a time on the front-end.

oned cancels an action by no longer waiting for its script (``cancel_action`` of OpenNebula's ActionManager.rb). If a
VM is deleted while an image is copied for it (``onevm recover --delete``), the copy continues during the deletion.
So an action waits for the previous one, and does nothing if the directory of its VM was deleted after it began.

Each VM has an entry in a file. It is locked while one of its actions runs, and contains the start of the last
deletion of its directory, by the kernel's clock, so that setting the clock back refuses no action.
"""

import contextlib
import os
import pwd
import struct
from collections.abc import Iterator
from pathlib import Path

from containerhost.linux.files import closing
from containerhost.linux.lock import byte_held
from containerhost.linux.sysfs import Host
from onedriver.errors import DriverError
from onedriver.node.single_instance import HOME, RUN

FILE = "turns"
ENTRY = struct.Struct("<16sd")  # id of the host's boot, and seconds since it
TIMEOUT = 3600.0  # s; the action before may copy a large disk, but each that waits holds a thread of oned's
STARTTIME = 19  # field of /proc/PID/stat after the program's name, from 0; see proc_pid_stat(5)


@contextlib.contextmanager
def turn(vm: int, *, deletes: bool) -> Iterator[None]:
    """Run the block while no other action of the VM runs.

    :param deletes: whether the block deletes the VM's directory: no action that began earlier may follow
    :raises DriverError: the VM's directory was deleted meanwhile, or another action does not finish
    """
    file, offset, now, this_boot = directory() / FILE, vm * ENTRY.size, began(), boot()
    with byte_held(file, offset, TIMEOUT, lambda _: DriverError(
            f"repeat it later: another transfer of VM {vm} has not ended within {TIMEOUT / 3600:g} h")), closing(
            os.open(file, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)) as fd:
        found = os.pread(fd, ENTRY.size, offset)
        in_boot, deleted = ENTRY.unpack(found) if len(found) == ENTRY.size else (b"", 0.0)
        if in_boot == this_boot and now < deleted:
            raise DriverError(f"VM {vm} was deleted after this transfer had begun: nothing was done")
        if deletes:
            os.pwrite(fd, ENTRY.pack(this_boot, now), offset)
        yield


def directory() -> Path:
    """Return the path of this user's file, where no other user can write."""
    return RUN if os.getuid() == 0 else Path(pwd.getpwuid(os.getuid()).pw_dir) / HOME


def began() -> float:
    """Return when this process started, in seconds since the host's boot: the order in which oned started actions."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return int(fields[STARTTIME]) / os.sysconf("SC_CLK_TCK")


def boot() -> bytes:
    return bytes.fromhex((Host().boot_id or "").replace("-", ""))
