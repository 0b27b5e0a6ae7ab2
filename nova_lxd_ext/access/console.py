# SPDX-License-Identifier: Apache-2.0
"""Keep what a server printed on its console.

The daemon hands out a running container's output only once: what was read is gone from its buffer. Of a stopped one it
shows a file, again and again, in which the whole is or only what was not read before (seen with LXD 5.0). So what was
read is kept in the server's directory.
"""

from nova import objects
from oslo_concurrency import lockutils

from containerhost.engines.contract import ContainerState, Engine, Status
from nova_lxd_ext.storage import directories

# Bytes, as nova's other drivers keep; a tenant decides how much is printed, the host how much is kept and passed on.
LIMIT = 100 * 1024
FILE = "console.log"


def output(engine: Engine, instance: objects.Instance, state: ContainerState) -> bytes:
    """Return the end of the console's output, from the start of a line; empty when there never was any."""
    with lockutils.lock(f"console-{instance.uuid}"):
        new = engine.console_log(state.name)
        end = tail(joined(_kept(instance.uuid), new, repeats=state.status is Status.STOPPED))
        if end:
            (directories.make(instance.uuid) / FILE).write_bytes(end)
        return end


def joined(kept: bytes, new: bytes, repeats: bool) -> bytes:
    """Append new output to what was kept.

    :param new: everything, or what came since ``kept`` was read
    :param repeats: ``new`` may have been read before as it is
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
