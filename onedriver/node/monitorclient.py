# SPDX-License-Identifier: Apache-2.0
"""Run ``lxdone-monitor`` and ``onedock-monitor``, which OpenNebula starts and stops on a node to monitor it.

    lxdone-monitor DIRECTORY DRIVER HOST_ID HOSTNAME         print the first round, then continue in the background
    lxdone-monitor DIRECTORY stop DRIVER HOST_ID HOSTNAME    end the background process

DIRECTORY is ``remotes/im``. Standard input of the start is onemonitord's MONITOR_CONFIGURATION. It runs as the
calling user, oneadmin: only its probes run as root.
"""

import functools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from containerhost.linux.run import detached
from onedriver import document, monitor, program
from onedriver.errors import BadInput
from onedriver.monitor import Message, Type
from onedriver.monitorconfig import MonitorConfig, monitor_config
from onedriver.node import options, single_instance
from onedriver.node.options import NodeOptions
from onedriver.node.poll_loop import PollLoop

USAGE = "usage: (lxdone|onedock)-monitor DIRECTORY [stop] DRIVER HOST_ID HOSTNAME"
BACKGROUND = "go-on"
STOP_TIMEOUT = 30  # seconds
SEND_TIMEOUT = 10  # seconds to connect
SURE = frozenset({Type.STATE_VM, Type.EXEC_VM})  # sent by a connection, because they must not be lost


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    program.log_to(sys.stderr)
    match words:
        case ["--version"]:
            return program.print_version()
        case [_, "stop", driver, host, *_]:
            return program.run("stop of monitoring", lambda: stop(name_of(driver, host)))
        case [directory, "go-on", fd, *rest]:
            return program.run("monitoring", lambda: go_on(Path(directory), int(fd), rest, read_input()))
        case [directory, driver, host, *rest]:
            return program.run("start of monitoring", lambda: start(Path(directory), [driver, host, *rest],
                                                                    read_input()))
        case _:
            asked = words == ["--help"]
            print(USAGE, file=sys.stdout if asked else sys.stderr)
            return 0 if asked else 2


def read_input() -> bytes:
    return document.read(sys.stdin.buffer)


def name_of(driver: str, host: str) -> str:
    """Return the name of a node's client for one OpenNebula and user."""
    return f"opennebula-monitor/{os.getuid()}/{driver}/{host}"


def config_of(stdin: bytes) -> MonitorConfig:
    return monitor_config(stdin, os.environ.get("SSH_CLIENT", ""))


def poll_loop(directory: Path, argv: Sequence[str], stdin: bytes) -> PollLoop:
    probes = directory / f"{argv[0]}-probes.d"
    if not probes.is_dir():
        raise BadInput(f"there is no directory {probes} of probes; were the driver's files copied to this node "
                       "(onehost sync --force)?")
    return PollLoop(probes, argv, stdin, *directories_of(argv[0]))


def directories_of(driver: str) -> tuple[Path, Path]:
    """Return the directories of the allocation records and of the driver's VMs, from the driver's options.

    :raises BadOptions: the options cannot be read
    """
    found = options.values_of(options.path_of(driver))
    return Path(found.get("owners", NodeOptions.owners)), Path(found.get("state", f"/var/lib/{driver}"))


def stop(name: str) -> None:
    single_instance.end(name, STOP_TIMEOUT)


def start(directory: Path, argv: Sequence[str], stdin: bytes) -> str:
    """Start the background process, and return the output of the first round.

    :raises AlreadyRunning: another start was quicker
    """
    config_of(stdin)
    name = name_of(argv[0], argv[1])
    stop(name)
    with single_instance.take(name) as listener:
        answer = monitor.answer(poll_loop(directory, argv, stdin).first(), int(time.time()))
        detach(directory, listener, argv, stdin)
    return answer


def detach(directory: Path, listener: socket.socket, argv: Sequence[str], stdin: bytes) -> None:
    """Start the background process without any open writer of the answer, whose reader waits for the end."""
    process = detached(
        [sys.executable, "-m", "onedriver.node.monitorclient", str(directory), BACKGROUND, str(listener.fileno()),
         *argv],
        stdin=subprocess.PIPE, pass_fds=[listener.fileno()])
    if process.stdin:
        process.stdin.write(stdin)
        process.stdin.close()


def go_on(directory: Path, fd: int, argv: Sequence[str], stdin: bytes) -> None:
    """Run the background process, with the socket's fd from :func:`start`."""
    config, ended = config_of(stdin), threading.Event()
    with socket.socket(fileno=fd) as listener:

        def await_end() -> None:
            # Detached, so that only the kernel closes it: then no part of this process remains.
            single_instance.await_end(listener).detach()
            ended.set()

        signal.signal(signal.SIGTERM, lambda *_: ended.set())
        threading.Thread(target=await_end, daemon=True).start()
        poll_loop(directory, argv, stdin).run(config, functools.partial(send, config), ended)


def send(config: MonitorConfig, kind: Type, success: bool, text: str) -> None:
    """Send a message to onemonitord, by datagrams or a connection; raise OSError if it cannot be sent."""
    message = Message(kind, success, config.host, int(time.time()), text)
    parts = monitor.datagrams(message, config.encrypt)
    if kind in SURE or max(map(len, parts)) > monitor.DATAGRAM_LIMIT:
        with socket.create_connection((config.address, config.port), SEND_TIMEOUT) as connection:
            connection.sendall(monitor.wire(message, config.encrypt))
        return
    family, carrying, protocol, _, address = socket.getaddrinfo(config.address, config.port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, carrying, protocol) as carrier:
        for data in parts:
            carrier.sendto(data, address)


if __name__ == "__main__":
    sys.exit(main())
