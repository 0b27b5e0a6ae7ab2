# SPDX-License-Identifier: Apache-2.0
"""Send requests from the front-end's transfer driver to nodes: one command over ssh for each (see node_agent.py)."""

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from containerhost.linux.run import start
from onedock.transfer.node_agent import Request
from onedriver.errors import DriverError
from onedriver.node import pipes
from onedriver.ssh import SSH, problem

COMMAND = "onedock node"
ANSWER_LIMIT = 64 << 10  # bytes

Content = Callable[[BinaryIO], None]


class Node:
    def __init__(self, host: str) -> None:
        self.host = host

    def ask(self, do: str, path: Path, content: Content | None = None, **more: Any) -> Request:
        """Send a request to the node, and return its answer.

        :param content: writes the content after the request
        :raises DriverError: with the node's message
        """
        with self.reading(do, path, content, **more) as answer:
            line = answer.read(ANSWER_LIMIT)
        try:
            return json.loads(line)
        except ValueError as error:
            raise DriverError(f"{self.host} answers {line[:100]!r} instead of the answer to {do}") from error

    @contextlib.contextmanager
    def reading(self, do: str, path: Path, content: Content | None = None, **more: Any) -> Iterator[BinaryIO]:
        """Read content from a node, which is known to be complete only after the block."""
        what = f"{self.host}: {do} of {path}"
        with tempfile.TemporaryFile() as complaints, self._ssh(complaints) as ssh:
            stdin = pipes.writer(cast(BinaryIO, ssh.stdin), what)
            stdout = pipes.reader(cast(BinaryIO, ssh.stdout), what)
            try:
                # A node that fails at once closes its end; what it said tells more than that.
                with contextlib.suppress(BrokenPipeError):
                    tell(stdin, {"do": do, "path": str(path), **more}, content)
                yield stdout
                rest = stdout.read(1)
                status = ssh.wait(pipes.STALL_TIMEOUT)
            except BaseException:
                ssh.kill()
                raise
            if status or rest:
                complaints.seek(0)
                raise DriverError(problem(self.host, f"{do} of {path}", status, complaints.read()))

    def _ssh(self, complaints: IO[bytes]) -> subprocess.Popen[bytes]:
        return start([*SSH, self.host, COMMAND], f"{self.host} cannot be reached over ssh", DriverError,
                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints, bufsize=0)


def tell(stdin: BinaryIO, request: Request, content: Content | None) -> None:
    with stdin:
        stdin.write(json.dumps(request).encode() + b"\n")
        stdin.flush()
        if content:
            content(stdin)
