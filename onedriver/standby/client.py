"""The side of the call: hands it to the process that stands by, and does it itself where there is none.

Everybody waits for this module, so it loads little. Who stands by says that it listens. A call is one message (unix(7),
SOCK_SEQPACKET) with the caller's standard input, output and error beside it (SCM_RIGHTS). One byte answers that it is
taken, then text tells how it ended. A caller that hangs up before all is over ends what it began.
"""

import _socket  # the module around it takes longer to load than all the rest of a call that is handed over
import os
import sys
from collections.abc import Sequence

#: What a node does often, and without staying.
SHORT = ("vmm", "probe")

RUN = "/run"
READY, TAKEN = b"?", b"+"
PATIENCE = 2.0  # s in which a call is taken; nothing has been done of one that is not
STANDARD = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))  # input, output, error: ints of C
STATUS = 16  # bytes that hold an exit status


def run(driver: str) -> int:
    """The command of a driver, as this process was called.

    :param driver: the package's name; it has ``cli.main(words)`` and ``conf.load()``
    :returns: the exit status
    """
    words = sys.argv[1:]
    if os.geteuid() == 0:
        os.chdir("/")  # programs look for their configuration where they are called, which may be anybody's folder
    short = len(words) > 1 and words[0] in SHORT and os.geteuid() == 0
    status = handed(driver, words) if short else None
    if status is not None:
        return status

    from importlib import import_module  # noqa: PLC0415  (one that is handed over needs no more)
    status = int(import_module(f"{driver}.cli").main(words))
    if short and status == 0 and import_module(f"{driver}.conf").load().standby:
        leave(driver)
    return status


def handed(driver: str, words: Sequence[str]) -> int | None:
    """:returns: the exit status; None when nobody has taken the call"""
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    if not taken(connection, driver, words):
        connection.close()
        return None
    connection.settimeout(None)
    told = connection.recv(STATUS)
    if not told:
        print(f"{driver} {words[1]}: the process that did it was killed.", file=sys.stderr)
        return 1
    connection.recv(STATUS)  # its end
    return int(told)


def taken(connection: _socket.socket, driver: str, words: Sequence[str]) -> bool:
    connection.settimeout(PATIENCE)
    try:
        connection.connect(place(driver))
        connection.recv(len(READY))  # before that, nobody would close what is sent
        connection.sendmsg([message(words)], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, STANDARD)])
        return connection.recv(len(TAKEN)) == TAKEN
    except OSError:
        return False


def message(words: Sequence[str]) -> bytes:
    """What a call is: whose code it is, its words, its environment; none of them can hold a NUL."""
    environment = (f"{key}={value}" for key, value in os.environ.items())
    return os.fsencode("\0".join((__file__, str(len(words)), *words, *environment)))


def leave(driver: str) -> None:
    """Let a process stand by from now on. It goes on by itself; a second one ends at once."""
    os.chdir("/")  # the interpreter would take modules from where its caller was
    null = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
    os.posix_spawn(sys.executable, [sys.executable, "-m", "onedriver.standby.server", driver], os.environ,
                   file_actions=null, setsid=True)


def place(driver: str) -> str:
    """Of the socket. Disks are mounted and interfaces moved: a caller is only served by a process in its own
    namespaces."""
    mounts, network = (os.stat(f"/proc/self/ns/{kind}").st_ino for kind in ("mnt", "net"))
    return f"{RUN}/{driver}/standby-{mounts}-{network}"
