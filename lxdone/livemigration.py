# SPDX-License-Identifier: Apache-2.0
"""Exchange requests between the nodes of a live migration: ``lxdone vmm receive`` on the destination, over ssh.

One process on each node holds the VM's lock there; each request and each answer is one line of JSON. The destination
ends with the source, and reports a failure on its standard error.
"""

import contextlib
import dataclasses
import json
import logging
import os
import pwd
import re
import select
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from containerhost.engines.capabilities import ChangesOffer, Transfers
from containerhost.engines.spec import ContainerSpec
from containerhost.linux.poll import is_readable
from containerhost.linux.run import end, start
from lxdone import translate
from onedriver.actions import Call
from onedriver.errors import DriverError, NotSupported
from onedriver.ssh import SSH, problem
from onedriver.vm import Vm

LOG = logging.getLogger(__name__)

COMMAND = 'exec sudo -n "$(command -v lxdone || echo lxdone)" vmm receive "$@"'
LINE_LIMIT = 16 << 20  # bytes
OPERATION = re.compile(r"[0-9a-f-]{1,64}")
LAST_WORDS_TIMEOUT = 30.0  # s in which a destination that failed ends
# OpenNebula cuts long errors: the remedy comes first.
REFUSED = (f"use onevm migrate without --live, or {translate.LIVE_MIGRATION} = {translate.RESTART} in its template, "
           "which lets a live migration restart it: a container's processes share their host's kernel and cannot move "
           "while they run")


def require_allowed(vm: Vm, address: str) -> None:
    """Refuse a VM that cannot leave, with the remedy, before any change.

    :param address: address at which other nodes fetch containers from this one
    """
    if not translate.restarts_to_migrate(vm.own):
        raise NotSupported(REFUSED)
    if vm.pcis:  # oned refuses them first
        raise NotSupported("a VM with PCI devices is migrated while it is off: onevm migrate --poff")
    if not address:
        raise NotSupported("use onevm migrate without --live, or set migration_address of /etc/lxdone.toml, the https "
                           "address of this node's LXD")


class Destination:
    """Send requests to the destination's process, and read its answers.

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
        self.node = self._ask({"document": document.decode(), "node": os.uname().nodename})["node"]

    def fetch_changes(self, offer: ChangesOffer) -> None:
        """Make it fetch the container, or its changes since the former offer."""
        self._ask({"offer": dataclasses.asdict(offer)})

    def start(self) -> None:
        """Make it take the root that the source offers, and start the VM."""
        self._ask({"start": True})

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
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


Connect = Callable[[Call], AbstractContextManager[Destination]]


def connector(datastores: Path, timeout: float) -> Connect:
    """Return a function that connects to a destination.

    :param datastores: their owner is the user of OpenNebula, as whom nodes reach one another
    """
    @contextlib.contextmanager
    def connect(call: Call) -> Iterator[Destination]:
        host = call.arguments["destination"]
        words = [host, call.arguments["source"]]
        command = shlex.join(["sh", "-c", COMMAND, "sh", call.deploy_id, *words, str(call.vm_id), call.host])
        with tempfile.TemporaryFile() as complaints:
            ssh = start([*SSH, host, command], f"{host} cannot be reached over ssh", DriverError,
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints, bufsize=0,
                        start_new_session=True, **identity(datastores.stat().st_uid, call.arguments.get("agent", "")))
            try:
                destination = Destination(host, ssh, complaints, timeout)
                destination.open(call.document)
                yield destination
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


class Arrival:
    """Fetch a VM's container on its destination, and start it.

    :param spec: of the container until it starts
    :param peers: addresses to fetch from; oneadmin, who names one, is not root, and LXD trusts what it fetches
    :param timeout: seconds that one round of copying may take
    :param take_over: takes the root from the source, and starts the VM
    """

    def __init__(self, transfers: Transfers, spec: ContainerSpec, peers: Collection[str], timeout: int,
                 take_over: Callable[[], None]) -> None:
        self._transfers = transfers
        self._spec = spec
        self._peers = peers
        self._timeout = timeout
        self._take_over = take_over
        self._refresh = False

    def fetch_changes(self, offer: ChangesOffer) -> None:
        """Fetch the container, or its changes since the former offer."""
        address, _, operation = offer.operation.partition("/1.0/operations/")
        if address not in self._peers or not OPERATION.fullmatch(operation):
            raise NotSupported("use onevm migrate without --live, or add to migration_peers of /etc/lxdone.toml of "
                               f"this node {address[:200]}")
        if not self._transfers.takes_changes(self._spec, offer):
            raise NotSupported("use onevm migrate without --live: storage pool "
                               f"{self._spec.root.pool} of this node does not take differences of a pool of type "
                               f"{offer.pool_type}; both must be of that type")
        self._transfers.fetch_changes(self._spec, offer, self._timeout, refresh=self._refresh)
        self._refresh = True

    def start(self) -> None:
        """Take the root that the source offers, and start the VM. No further changes follow."""
        self._transfers.drop_snapshots(self._spec.name)
        self._take_over()


def requests(stdin: BinaryIO, timeout: float) -> Iterator[dict[str, Any]]:
    """Yield the requests of the source.

    :param timeout: seconds to wait for the next one
    :raises DriverError: the source has ended
    """
    while (request := read(stdin, timeout)) is not None:
        yield request
    raise DriverError("the source of the live migration has stopped, or cancelled it: the copy is removed")


def serve(arrival: Arrival, asked: Iterator[dict[str, Any]], stdout: BinaryIO) -> None:
    """Serve the source's requests until the VM runs here; the last request is not answered yet."""
    for request in asked:
        match request:
            case {"offer": dict(offer)}:
                arrival.fetch_changes(checked(offer))
            case {"start": True}:
                arrival.start()
                return
            case _:
                raise DriverError(f"the source requests {sorted(request)}, which this release does not support")
        write(stdout, {})


def checked(offer: dict[str, Any]) -> ChangesOffer:
    """Return the offer of a request; raise DriverError if it is malformed."""
    kinds = {field.name: dict if field.name in ("config", "secrets") else str
             for field in dataclasses.fields(ChangesOffer)}
    if offer.keys() != kinds.keys() or not all(isinstance(offer[name], kind) for name, kind in kinds.items()):
        raise DriverError(f"the source sends a malformed offer, with {', '.join(sorted(offer))[:200]}")
    return ChangesOffer(**offer)


def write(stream: BinaryIO, message: dict[str, Any]) -> None:
    stream.write(json.dumps(message).encode() + b"\n")
    stream.flush()


def read(stream: BinaryIO, timeout: float) -> dict[str, Any] | None:
    """Read a message; None if the other side has ended.

    :param stream: unbuffered
    :raises DriverError: none arrives in time, or it is malformed
    """
    line = bytearray()
    while not line.endswith(b"\n"):
        if not is_readable(stream, timeout):
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

