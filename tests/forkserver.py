# SPDX-License-Identifier: Apache-2.0
"""Start commands of this project faster than the operating system does: a process that has loaded their modules forks.

A start of Python that loads an action's modules takes longer than most actions. Suites that run thousands of them put
the scripts of :meth:`ForkServer.script` in the path, in the place of the commands. Such a script (``forkclient.py``)
asks the server for a process with its arguments, environment, working directory, umask, input and outputs, waits for
its end and ends in the same way: with its status, or by its signal. The process runs the module's ``main``, as a start
would.

What is not the same: the process is not the script's own. It has another number and process group, and has the server's
namespaces, limits and control group. Where that matters, the command itself is to be started: a script does so for any
user but root and in other namespaces; a test that kills a process or watches one does by its environment. If a script
is killed, the server kills its process with all its group.

    python -m tests.forkserver SOCKET NAME…      the server, until its standard input ends
"""

import atexit
import contextlib
import gc
import importlib
import marshal
import os
import pkgutil
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from tests.commands import ROOT, python_path, script

CLIENT = Path(__file__).with_name("forkclient.py")
STANDARD = 3  # input, output, errors; then come the working directory and the request


class ForkServer:
    """A server for the life of this process.

    :param loaded: modules to load; of packages all modules below them
    """

    def __init__(self, *loaded: str) -> None:
        directory = tempfile.TemporaryDirectory(prefix="forkserver.")
        self._directory = directory  # removed with this object
        self._socket = Path(directory.name, "socket")
        self._path = python_path()
        others = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        environment = others | {"PYTHONPATH": self._path, "LANG": "C.UTF-8"}
        self._process = subprocess.Popen([sys.executable, "-m", __name__, str(self._socket), *loaded], cwd=ROOT,
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
                                         start_new_session=True)
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError("the fork server did not start; its reason is above")

    def script(self, file: Path, module: str, command: Path) -> None:
        """Make a script that runs a module's ``main``.

        :param command: what it starts where it cannot ask the server
        """
        words = [sys.executable, "-I", "-S", str(CLIENT), str(self._socket), str(self._process.pid), module,
                 str(command)]
        script(file, f"PYTHONPATH={self._path} exec {shlex.join(words)}")


class Server:
    """The server's own process. One thread, so that it can fork at any time."""

    def __init__(self, address: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen(64)
        self._clients: dict[int, tuple[socket.socket, int]] = {}  # by the pidfd of a process: its script, its number
        self._events = selectors.DefaultSelector()
        for source in (self._listener, 0):
            self._events.register(source, selectors.EVENT_READ)

    def serve(self) -> int:
        """Fork a process for each request.

        :returns: in such a process what its ``main`` returned; in the server 0 when its standard input ends
        """
        while True:
            for key, _ in self._events.select():
                if key.fileobj == 0:
                    return 0
                if key.fileobj is self._listener:
                    given = self._fork()
                    if given:
                        return run(given)
                elif key.fileobj in self._clients:
                    self._tell(key.fd)
                elif key.data in self._clients:  # else its process has ended in this round
                    self._events.unregister(key.fileobj)  # the script was killed
                    os.killpg(self._clients[key.data][1], signal.SIGKILL)

    def _fork(self) -> Sequence[int]:
        """Return in the new process what came with the request: descriptors; in the server nothing."""
        connection, _ = self._listener.accept()
        _, given, _, _ = socket.recv_fds(connection, 1, STANDARD + 2)
        if not given:  # the script was killed before its request
            connection.close()
            return ()
        pid = os.fork()
        if pid == 0:
            connection.close()
            self._close()
            return given
        os.setpgid(pid, pid)  # here too: the script may be killed at once
        for fd in given:
            os.close(fd)
        ended = os.pidfd_open(pid)
        self._clients[ended] = connection, pid
        self._events.register(ended, selectors.EVENT_READ)
        self._events.register(connection, selectors.EVENT_READ, ended)
        return ()

    def _close(self) -> None:
        self._events.close()
        self._listener.close()
        for ended, (connection, _) in self._clients.items():
            os.close(ended)
            connection.close()

    def _tell(self, ended: int) -> None:
        """Tell a script how its process ended."""
        connection, pid = self._clients.pop(ended)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self._events.unregister(ended)
        os.close(ended)
        if connection in self._events.get_map():
            self._events.unregister(connection)
            with contextlib.suppress(BrokenPipeError):
                connection.sendall(b"%d" % status)
        connection.close()


def run(given: Sequence[int]) -> int:
    """Become the requested process."""
    os.setpgid(0, 0)
    *standard, directory, request = given
    with open(request, "rb") as file:
        module, argv, environment, umask = marshal.loads(file.read())
    for fd, place in zip(standard, range(STANDARD), strict=True):
        os.dup2(fd, place)
        os.close(fd)
    os.fchdir(directory)
    os.close(directory)
    os.umask(umask)
    os.environ.clear()
    os.environb.update(environment)
    main = importlib.import_module(f"{module}.__main__")
    sys.argv[:] = [str(main.__file__), *map(os.fsdecode, argv)]
    status = int(main.main())
    if threading.active_count() > 1:
        return status
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)  # to free all that was loaded would copy it first


def load(name: str) -> None:
    """Load a module; of a package, all modules below it."""
    module = importlib.import_module(name)
    for below in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{name}."):
        importlib.import_module(below.name)


if __name__ == "__main__":
    for name in sys.argv[2:]:
        load(name)
    gc.freeze()
    server = Server(sys.argv[1])
    print("ready", flush=True)
    sys.exit(server.serve())
