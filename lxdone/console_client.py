# SPDX-License-Identifier: Apache-2.0
"""Serve a client of a container's console. Called with the container's name and the file descriptor of the client's
socket; the password is in the VM's directory, not for the eyes of others on the host."""

import socket
import sys
from pathlib import Path

from lxdone import backend, conf
from onedriver.node import consoles
from onedriver.node.vnc import console_client


def main() -> None:
    name, fd = sys.argv[1:]
    options = conf.load()
    record = consoles.read(Path(options.state) / name / consoles.FILE)
    engine = backend.engine(options)
    with socket.socket(fileno=int(fd)) as client:
        if record:  # else the console has ended meanwhile
            console_client.main(client, name, record.vnc.password, lambda: engine.console(name),
                                lambda: engine.console_log(name))


if __name__ == "__main__":
    main()
