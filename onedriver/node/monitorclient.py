# SPDX-License-Identifier: Apache-2.0
"""The commands ``lxdone-monitor`` and ``onedock-monitor``: what OpenNebula starts and stops on a node to have it
monitored.

    lxdone-monitor FOLDER DRIVER HOST_ID HOSTNAME         print the first round, then go on in the background
    lxdone-monitor FOLDER stop DRIVER HOST_ID HOSTNAME    end what goes on

FOLDER is ``remotes/im``. Standard input of the start is onemonitord's MONITOR_CONFIGURATION. It runs as the user who
calls it, oneadmin: only its probes are root.
"""

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
from onedriver.monitorconfig import MonitorConfig, monitor_config
from onedriver.node import onlyone, options
from onedriver.node.options import NodeOptions
from onedriver.node.rounds import Rounds
from onedriver.node.sender import Sender

USAGE = "usage: (lxdone|onedock)-monitor FOLDER [stop] DRIVER HOST_ID HOSTNAME"
BACKGROUND = "go-on"
STOP_LIMIT = 30  # seconds


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    program.log_to(sys.stderr)
    match words:
        case [_, "stop", driver, host, *_]:
            return program.run("stop of monitoring", lambda: stop(name_of(driver, host)))
        case [folder, "go-on", handle, *rest]:
            return program.run("monitoring", lambda: go_on(Path(folder), int(handle), rest, read_input()))
        case [folder, driver, host, *rest]:
            return program.run("start of monitoring", lambda: start(Path(folder), [driver, host, *rest], read_input()))
        case _:
            asked = words == ["--help"]
            print(USAGE, file=sys.stdout if asked else sys.stderr)
            return 0 if asked else 2


def read_input() -> bytes:
    return document.read(sys.stdin.buffer)


def name_of(driver: str, host: str) -> str:
    """Of the one client of a node in OpenNebula, and of its user."""
    return f"opennebula-monitor/{os.getuid()}/{driver}/{host}"


def config_of(stdin: bytes) -> MonitorConfig:
    return monitor_config(stdin, os.environ.get("SSH_CLIENT", ""))


def rounds(folder: Path, argv: Sequence[str], stdin: bytes) -> Rounds:
    probes = folder / f"{argv[0]}-probes.d"
    if not probes.is_dir():
        raise BadInput(f"there is no folder {probes} of probes; were the driver's files copied to this node "
                       "(onehost sync --force)?")
    return Rounds(probes, argv, stdin, allocations_of(argv[0]))


def allocations_of(driver: str) -> Path:
    """Return the folder of the records of this host's allocations, which the driver's options name.

    :raises BadOptions: the options cannot be read
    """
    file = Path(os.environ.get(f"{driver.upper()}_CONF", f"/etc/{driver}.toml"))
    return Path(options.values_of(file).get("owners", NodeOptions.owners))


def stop(name: str) -> None:
    onlyone.end(name, STOP_LIMIT)


def start(folder: Path, argv: Sequence[str], stdin: bytes) -> str:
    """:returns: the first round
    :raises NotAlone: another start was quicker
    """
    config_of(stdin)
    name = name_of(argv[0], argv[1])
    stop(name)
    with onlyone.take(name) as listener:
        answer = monitor.answer(rounds(folder, argv, stdin).first(), int(time.time()))
        detach(folder, listener, argv, stdin)
    return answer


def detach(folder: Path, listener: socket.socket, argv: Sequence[str], stdin: bytes) -> None:
    """It keeps only the name open: who reads the answer waits until nobody can add to it."""
    process = detached(
        [sys.executable, "-m", "onedriver.node.monitorclient", str(folder), BACKGROUND, str(listener.fileno()), *argv],
        stdin=subprocess.PIPE, pass_fds=[listener.fileno()])
    if process.stdin:
        process.stdin.write(stdin)
        process.stdin.close()


def go_on(folder: Path, handle: int, argv: Sequence[str], stdin: bytes) -> None:
    """:param handle: of the socket that :func:`start` took"""
    config, ended = config_of(stdin), threading.Event()
    with socket.socket(fileno=handle) as listener:

        def await_end() -> None:
            # Not even the interpreter's own end closes it, only the kernel after it: then nothing of this is left.
            onlyone.await_end(listener).detach()
            ended.set()

        signal.signal(signal.SIGTERM, lambda *_: ended.set())
        threading.Thread(target=await_end, daemon=True).start()
        rounds(folder, argv, stdin).run(config, Sender(config).send, ended)


if __name__ == "__main__":
    sys.exit(main())
