"""What a server printed on its console.

The daemon hands out a running container's output only once: what was read is gone from its buffer, and the whole is
there again only when the container is stopped (seen with LXD 5.0; liblxc empties its ring buffer as it writes it to
the log file). So what was read is kept in the server's folder.
"""

from nova import objects
from oslo_concurrency import lockutils

from containerhost.engines import ContainerState, Engine, Status
from nova_lxd_ext import folders

# Bytes, as nova's other drivers keep; a tenant decides how much is printed, the host how much is kept and passed on.
LIMIT = 100 * 1024
FILE = "console.log"


def output(engine: Engine, instance: objects.Instance, state: ContainerState) -> bytes:
    """The end of the console's output, from the start of a line; empty when there never was any."""
    with lockutils.lock(f"console-{instance.uuid}"):
        new = engine.console_log(state.name)
        whole = new if state.status is Status.STOPPED else joined(_kept(instance.uuid), new)
        end = tail(whole)
        if end:
            (folders.make(instance.uuid) / FILE).write_bytes(end)
        return end


def joined(kept: bytes, new: bytes) -> bytes:
    """:param new: what came since ``kept`` was read, or, from a daemon that keeps its buffer, everything once more"""
    return new if new.startswith(kept) else kept + new


def tail(log: bytes) -> bytes:
    if len(log) <= LIMIT:
        return log
    end = log[-LIMIT:]
    return end[end.find(b"\n") + 1:]


def _kept(uuid: str) -> bytes:
    file = folders.of(uuid) / FILE
    return file.read_bytes() if file.exists() else b""
