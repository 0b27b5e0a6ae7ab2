"""What a server printed on its console."""

from containerhost.engines import Engine

# Bytes, as nova's other drivers keep; a tenant decides how much is printed, the host how much is passed on.
LIMIT = 100 * 1024


def output(engine: Engine, name: str) -> bytes:
    """The end of the console log, from the start of a line; empty for a container that never had one.

    :raises EngineNotFound: when there is no such container
    """
    log = engine.console_log(name)
    if len(log) <= LIMIT:
        return log
    tail = log[-LIMIT:]
    return tail[tail.find(b"\n") + 1:]
