# SPDX-License-Identifier: Apache-2.0
"""Keep a server's console output.

The daemon returns a running container's output only once: reading empties its buffer. For a stopped one it returns a
file each time, with all of the output or only the unread part (seen with LXD 5.0). So the output is kept in the
server's directory.
"""

from nova import objects
from oslo_concurrency import lockutils

from containerhost.engines.contract import ContainerState, Engine, Status
from nova_lxd_ext.storage import directories

# Bytes, as in nova's other drivers. The host limits what it keeps and returns, because the tenant controls the amount
# of output.
LIMIT = 100 * 1024
FILE = "console.log"


def output(engine: Engine, instance: objects.Instance, state: ContainerState) -> bytes:
    """Return the end of the console's output, from the start of a line; empty if there is none."""
    with lockutils.lock(f"console-{instance.uuid}"):
        new = engine.console_log(state.name)
        end = tail(joined(_kept(instance.uuid), new, repeats=state.status is Status.STOPPED))
        if end:
            (directories.make(instance.uuid) / FILE).write_bytes(end)
        return end


def joined(kept: bytes, new: bytes, repeats: bool) -> bytes:
    """Append new output to the kept output.

    :param new: everything, or the output since ``kept`` was read
    :param repeats: ``new`` may have been read before in the same form
    """
    if new.startswith(kept):
        return new
    return kept if repeats and kept.endswith(new) else kept + new


def tail(log: bytes) -> bytes:
    if len(log) <= LIMIT:
        return log
    end = log[-LIMIT:]
    return end[end.find(b"\n") + 1:]


def _kept(uuid: str) -> bytes:
    file = directories.of(uuid) / FILE
    return file.read_bytes() if file.exists() else b""
