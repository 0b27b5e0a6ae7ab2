# SPDX-License-Identifier: Apache-2.0
"""Exchange requests between the nodes of a live migration: a driver's ``vmm receive`` on the destination, over ssh.

One process on each node holds the VM's lock there; each request and each answer is one line of JSON. The destination
ends with the source, and reports a failure on its standard error.
"""

import contextlib
import json
import os
import pwd
import select
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any, BinaryIO, Protocol, TypeVar, cast

from containerhost.linux.poll import is_readable
from containerhost.linux.run import end, start
from onedriver.actions import Call
from onedriver.errors import DriverError, NotSupported
from onedriver.section import RESTART, restarts_to_migrate
from onedriver.ssh import SSH, problem
from onedriver.vm import Vm

COMMAND = 'exec sudo -n "$(command -v DRIVER || echo DRIVER)" vmm receive "$@"'
LINE_LIMIT = 16 << 20  # bytes
LAST_WORDS_TIMEOUT = 30.0  # s in which a destination that failed ends


def require_allowed(vm: Vm, key: str) -> None:
    """Refuse a VM that may not be migrated by a restart, before any change.

    OpenNebula cuts long errors: the remedy comes first.

    :param key: the driver's attribute that permits it
    """
    if not restarts_to_migrate(vm.own, key):
        raise NotSupported(f"use onevm migrate without --live, or {key} = {RESTART} in its template, which lets a live "
                           "migration restart it: a container's processes share their host's kernel and cannot move "
                           "while they run")
    if vm.pcis:  # oned refuses them first
        raise NotSupported("a VM with PCI devices is migrated while it is off: onevm migrate --poff")


class Destination:
    """Send requests to the destination's process, and read its answers; a driver adds its requests.

    :param timeout: seconds until an answer comes
    :ivar node: the destination's own name
    """

    def __init__(self, host: str, ssh: "subprocess.Popen[bytes]", complaints: IO[bytes], timeout: float) -> None:
        self._host = host
        self._ssh = ssh
        self._complaints = complaints
        self._timeout = timeout
        self.node = ""

    def open(self, document: bytes) -> None:
        self.node = self.ask({"document": document.decode(), "node": os.uname().nodename})["node"]

    def start(self) -> None:
        """Make it take the VM that the source offers, and start it."""
        self.ask({"start": True})

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request, and return the answer; raise DriverError with the destination's message if it fails."""
        stdin, stdout = cast(BinaryIO, self._ssh.stdin), cast(BinaryIO, self._ssh.stdout)
        with contextlib.suppress(BrokenPipeError):  # what it said tells more
            write(stdin, request)
        answer = read(stdout, self._timeout)
        if answer is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._ssh.wait(LAST_WORDS_TIMEOUT)
            self._complaints.seek(0)
            raise DriverError(problem(self._host, "the live migration", self._ssh.poll(), self._complaints.read()))
        return answer


AnyDestination = TypeVar("AnyDestination", bound=Destination)


def connector(driver: str, destination: Callable[..., AnyDestination], datastores: Path, timeout: float
              ) -> Callable[[Call], AbstractContextManager[AnyDestination]]:
    """Return a function that connects to a destination.

    :param driver: its program
    :param destination: the driver's class
    :param datastores: their owner is the user of OpenNebula, as whom nodes reach one another
    """
    @contextlib.contextmanager
    def connect(call: Call) -> Iterator[AnyDestination]:
        host = call.arguments["destination"]
        words = [call.deploy_id, host, call.arguments["source"], str(call.vm_id), call.host]
        command = shlex.join(["sh", "-c", COMMAND.replace("DRIVER", driver), "sh", *words])
        with tempfile.TemporaryFile() as complaints:
            ssh = start([*SSH, host, command], f"{host} cannot be reached over ssh", DriverError,
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints, bufsize=0,
                        start_new_session=True, **identity(datastores.stat().st_uid, call.arguments.get("agent", "")))
            try:
                there = destination(host, ssh, complaints, timeout)
                there.open(call.document)
                yield there
            finally:
                cast(BinaryIO, ssh.stdin).close()  # by which the destination ends
                with contextlib.suppress(subprocess.TimeoutExpired):
                    ssh.wait(LAST_WORDS_TIMEOUT)
                end(ssh)

    return connect


def identity(uid: int, agent: str) -> dict[str, Any]:
    """Return the options of :class:`subprocess.Popen` for a program that runs as a user.

    :param agent: the socket of the agent with the user's keys; empty if there is none
    """
    if uid == os.geteuid():
        return {}
    user = pwd.getpwuid(uid)
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "LC_ALL")}
    return {"user": uid, "group": user.pw_gid, "extra_groups": os.getgrouplist(user.pw_name, user.pw_gid), "cwd": "/",
            "env": kept | {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name}
            | ({"SSH_AUTH_SOCK": agent} if agent else {})}


class Arrival(Protocol):
    """Receive a VM on its destination."""

    def fetch(self, request: Mapping[str, Any]) -> None:
        """Fetch what a request of the driver's names; raise DriverError on another one."""

    def start(self) -> None:
        """Take the VM that the source offers, and start it. No request follows."""


def serve(arrival: Arrival, asked: Iterable[Mapping[str, Any]], stdout: BinaryIO) -> None:
    """Serve the source's requests until the VM runs here; the last request is not answered yet."""
    for request in asked:
        if request == {"start": True}:
            arrival.start()
            return
        arrival.fetch(request)
        write(stdout, {})


def requests(stdin: BinaryIO, timeout: float) -> Iterator[dict[str, Any]]:
    """Yield the requests of the source.

    :param timeout: seconds to wait for the next one
    :raises DriverError: the source has ended
    """
    while (request := read(stdin, timeout)) is not None:
        yield request
    raise DriverError("the source of the live migration has stopped, or cancelled it: the copy is removed")


def unsupported(request: Mapping[str, Any]) -> DriverError:
    return DriverError(f"the source requests {sorted(request)}, which this release does not support")


def write(stream: BinaryIO, message: dict[str, Any]) -> None:
    stream.write(json.dumps(message).encode() + b"\n")
    stream.flush()


def read(stream: BinaryIO, timeout: float) -> dict[str, Any] | None:
    """Read a message; None if the other side has ended.

    :param stream: unbuffered
    :param timeout: seconds until all of it is there
    :raises DriverError: none arrives in time, or it is malformed
    """
    line, end = bytearray(), time.monotonic() + timeout
    while not line.endswith(b"\n"):
        if not is_readable(stream, max(0.0, end - time.monotonic())):
            raise DriverError(f"the other node has not answered for {timeout:g} s")
        part = os.read(stream.fileno(), 1 << 16)
        if not part:
            return None
        line += part
        if len(line) > LINE_LIMIT:
            raise DriverError(f"the other node sends a line of more than {LINE_LIMIT >> 20} MiB")
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DriverError(f"the other node sends {bytes(line[:100])!r}") from error
    if not isinstance(found, dict):
        raise DriverError(f"the other node sends {bytes(line[:100])!r}")
    return found


def is_abandoned(fd: int) -> bool:
    """Return whether this end has no reader: OpenNebula has cancelled the action, or was stopped."""
    poll = select.poll()
    poll.register(fd, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def document_of(request: dict[str, Any]) -> tuple[bytes, str]:
    """Return the description of the VM, and the source's name."""
    match request:
        case {"document": str(document), "node": str(node)}:
            return document.encode(), node
    raise DriverError("the source of the live migration did not begin with the VM")

