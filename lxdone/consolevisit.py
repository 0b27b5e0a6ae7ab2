# SPDX-License-Identifier: Apache-2.0
"""The program for a visitor of a container's console. Called with the container's name and the handle of the visitor's
socket; the password is in the VM's folder, not for the eyes of others on the host."""

import socket
import sys
from pathlib import Path

from lxdone import backend, conf
from onedriver.node import consoles
from onedriver.node.vnc import visit


def main() -> None:
    name, handle = sys.argv[1:]
    options = conf.load()
    record = consoles.read(Path(options.state) / name / consoles.FILE)
    engine = backend.engine(options)
    with socket.socket(fileno=int(handle)) as visitor:
        if record:  # else the console has ended meanwhile
            visit.main(visitor, name, record.vnc.password, lambda: engine.console(name),
                       lambda: engine.console_log(name))


if __name__ == "__main__":
    main()
