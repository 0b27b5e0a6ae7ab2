# SPDX-License-Identifier: Apache-2.0
"""The program for a client, where the container's console is a ``cat``: what is typed is printed."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from onedriver.node import consoles
from onedriver.node.vnc import console_client

STATE = "CATCLIENT_STATE"


class Cat:
    def __init__(self) -> None:
        self._process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self._input, self._output = self._process.stdin.fileno(), self._process.stdout.fileno()

    def receive(self) -> bytes | None:
        return os.read(self._output, 4096) or None

    def send(self, data: bytes) -> None:
        os.write(self._input, data)

    def close(self) -> None:
        self._process.kill()


def main() -> None:
    name, handle = sys.argv[1:]
    record = consoles.read(Path(os.environ[STATE]) / name / consoles.FILE)
    with socket.socket(fileno=int(handle)) as client:
        console_client.main(client, name, record.vnc.password, Cat, lambda: b"printed before\r\n")


if __name__ == "__main__":
    main()
