# SPDX-License-Identifier: Apache-2.0
"""Serve a client of a container's console, given the container's name and the fd of the client's socket.

The password is in the VM's directory, which other users of the host cannot read."""

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
        if record:  # else the console has ended
            console_client.main(client, name, record.vnc.password, lambda: engine.console(name),
                                lambda: engine.console_log(name))


if __name__ == "__main__":
    main()
