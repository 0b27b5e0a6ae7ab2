# SPDX-License-Identifier: Apache-2.0
"""Nodes of OpenNebula without hosts: each is a process with containers in memory, called by oned's real scripts.

    python -c 'from bench.emulatednodes import main; main()' DIRECTORY DATASTORES NAME...

A node listens at DIRECTORY/NAME. DIRECTORY/bin has the commands ``lxdone`` and ``lxdone-monitor``, which pass their
arguments and standard files to the node $NODE. DIRECTORY/messages gets a line for each message of monitoring: its type
and bytes. DIRECTORY/placed has the VMs of nodes of the driver dummy: a line for each, with the node's name and the ID.
"""

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

from containerhost.engines.contract import InterfaceMetrics, Metrics
from containerhost.errors import ContainerHostError
from onedriver import actions, document, monitor, program, template
from onedriver.monitor import Message, Type
from onedriver.monitorconfig import DIRECTORIES, MonitorConfig, monitor_config
from onedriver.node import measure, monitorclient
from onedriver.node.poll_loop import PollLoop
from onedriver.node.probe_directory import Found
from tests.model.opennebula import lxd
from tests.model.opennebula.engine import Engine as ModelEngine

SSH_CLIENT = "127.0.0.1 1 22"
MESSAGE_LIMIT = 64 << 10  # bytes of a command's arguments
DUMMY_PROBES = Path("/var/lib/one/remotes/im/dummy-probes.d")
# The module _socket, because loading socket takes longer than all else here.
CLIENT = """#!{python} -IS
import _socket, os, sys
end = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
end.connect("{directory}/" + os.environ["NODE"])
files = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
end.sendmsg(["\\0".join(sys.argv).encode()], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)])
os._exit(int(end.recv(16) or 255))
"""


class Engine(ModelEngine):
    """Containers whose figures grow with time, so that messages are as long as those of real ones."""

    def metrics(self, name: str) -> Metrics:
        number, now = int(name.rpartition("-")[2]), time.monotonic_ns()
        traffic = InterfaceMetrics("eth0", "", None, now // 1000 * number, 9, 0, 0, now // 2000 * number, 9, 0, 0)
        return Metrics(self.statuses[name], 1_000_000 + number, 5, now // 7, (40 + number % 24) << 20, 64 << 20, 0,
                       {"root": (180 + number % 60) << 20}, (traffic,))


class Loop(PollLoop):
    """Rounds of monitoring whose probes are calls, not programs."""

    def __init__(self, probe: Callable[[Type], str], state: Path) -> None:
        super().__init__(Path(), (), b"", state, state)
        self._probe = probe

    def found(self, kind: Type) -> Found:
        return Found(True, self._probe(kind))


class Node:
    """A node of the driver dummy: the output of its own probes for the host, lines like theirs for VMs."""

    def __init__(self, name: str, directory: Path) -> None:
        self._name = name
        self._directory = directory
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._host: dict[Type, str] = {}

    def serve(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(self._directory / self._name))
            os.chmod(self._directory / self._name, 0o666)
            listener.listen(256)
            while True:
                threading.Thread(target=self._answer, args=(listener.accept()[0],), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            data, files, _, _ = socket.recv_fds(connection, MESSAGE_LIMIT, 3)
            command, *words = data.decode().split("\0")
            with open(files[0], "rb") as given, open(files[1], "w") as out, open(files[2], "w") as err:
                act = self._monitor if command.endswith("-monitor") else self.act
                status = program.run(command, lambda: act(words, document.read(given)), {ContainerHostError: 1},
                                     out, err)
            connection.send(str(status).encode())

    def _monitor(self, words: Sequence[str], given: bytes) -> str | None:
        self._ended.set()
        if "stop" in words:
            return None
        config, loop = monitor_config(given, SSH_CLIENT), Loop(self.probe, self._directory)
        self._ended = threading.Event()
        answer = monitor.answer(loop.first(), int(time.time()))
        threading.Thread(target=loop.run, args=(config, self._send(config), self._ended), daemon=True).start()
        return answer

    def _send(self, config: MonitorConfig) -> Callable[[Type, bool, str], None]:
        def send(kind: Type, success: bool, text: str) -> None:
            monitorclient.send(config, kind, success, text)
            size = len(monitor.wire(Message(kind, success, config.host, int(time.time()), text)))
            with (self._directory / "messages").open("a") as file:
                file.write(f"{kind} {size}\n")
        return send

    def probe(self, kind: Type) -> str:
        """Return what the probes of one directory print."""
        if kind is Type.MONITOR_VM:
            placed = (line.split() for line in (self._directory / "placed").read_text().splitlines())
            return "\n".join(dummy_vm(node, number) for node, number in placed if node == self._name)
        if kind is Type.STATE_VM:
            return ""
        if kind not in self._host:
            files = sorted(file for file in (DUMMY_PROBES / DIRECTORIES[kind]).glob("*") if file.is_file())
            self._host[kind] = "\n".join(subprocess.check_output([file, "dummy", "0", self._name], text=True).strip()
                                         for file in files)
        return self._host[kind]

    def act(self, words: Sequence[str], given: bytes) -> str | None:
        raise NotImplementedError


class LxdoneNode(Node):
    """A node of lxdone: the actions and the probes of VMs are the driver's; LXD, mounts and devices are in memory."""

    def __init__(self, name: str, directory: Path, datastores: Path) -> None:
        super().__init__(name, directory)
        self._node = lxd.LxdNode(directory / f"{name}.files", {})
        self._node.engine = Engine(self._node.process)
        self._node.datastores = datastores
        self._node.options = dataclasses.replace(self._node.options, datastores=str(datastores))

    def act(self, words: Sequence[str], given: bytes) -> str | None:
        call = actions.call(words[1], words[2:], given)
        with self._lock:
            self._node.process.begin(())  # it would remember each step for ever
            if call.action in lxd.STARTS:  # OpenNebula's transfer driver dummy makes no disk
                disk = self._node.datastores / str(call.vm.system_ds) / str(call.vm_id) / "disk.0"
                disk.parent.mkdir(parents=True, exist_ok=True)
                disk.write_bytes(lxd.tarball(0))
                owner = disk.parent.stat()
                os.chown(disk, owner.st_uid, owner.st_gid)
            return self._node.act(call)

    def probe(self, kind: Type) -> str:
        if DIRECTORIES[kind] not in measure.PROBES:
            return str(int(time.time())) if kind is Type.BEACON_HOST else ""
        with self._lock, mock.patch("onedriver.node.monitored.start_reconciling", lambda _: self._node.reconcile()):
            self._node.process.begin(())
            return measure.probe(DIRECTORIES[kind], self._node.measure)


def dummy_vm(node: str, number: str) -> str:
    now = int(time.time()) % 10_000
    metrics = dict.fromkeys(("NETTX", "NETRX", "MEMORY", "CPU", "DISKRDBYTES", "DISKWRBYTES", "DISKRDIOPS",
                             "DISKWRIOPS"), now + int(number))
    return template.vector("VM", {"ID": number, "DEPLOY_ID": f"{node}:vm-{number}:dummy",
                                  "MONITOR": template.encoded(metrics, "")})


def main() -> None:
    directory, datastores = Path(sys.argv[1]), Path(sys.argv[2])
    (directory / "bin").mkdir(parents=True)
    for name in ("messages", "placed"):
        (directory / name).touch()
    for name in ("lxdone", "lxdone-monitor"):
        file = directory / "bin" / name
        file.write_text(CLIENT.format(python=sys.executable, directory=directory))
        file.chmod(0o755)
    for name in sys.argv[3:]:
        if os.fork() == 0:
            (LxdoneNode(name, directory, datastores) if name.startswith("lxdone") else Node(name, directory)).serve()
    signal.pause()
