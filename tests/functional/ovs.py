# SPDX-License-Identifier: Apache-2.0
"""Run a real Open vSwitch for the functional tests, in user space: one per test process, without kernel modules.

Root is needed, and a network namespace nobody else uses: tools/fakehost gives both.
"""

import atexit
import functools
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

import fixtures
import os_vif
from oslo_config import cfg
from vif_plug_ovs import privsep

from tests.functional.run_directory import RunDirectory

SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"
BRIDGE = "br-int"
PORT = 6640
TIMEOUT = 60  # s


class Daemons:
    """ovsdb-server and ovs-vswitchd, with one bridge that switches like any other.

    :ivar connection: where the database listens, as os-vif is told
    """

    connection = f"tcp:127.0.0.1:{PORT}"

    def __init__(self) -> None:
        self._home = RunDirectory()
        self._directory = self._home.path
        self._environment = {**os.environ, "OVS_RUNDIR": str(self._directory), "OVS_LOGDIR": str(self._directory),
                             "OVS_DBDIR": str(self._directory)}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._socket = f"unix:{self._directory}/db.sock"

    def start(self) -> None:
        database = self._directory / "conf.db"
        self._run("ovsdb-tool", "create", str(database), SCHEMA)
        self._spawn("ovsdb-server", str(database), f"--remote=p{self._socket}", f"--remote=ptcp:{PORT}:127.0.0.1")
        self._until((self._directory / "db.sock").exists)
        self.vsctl("--no-wait", "init")
        self._spawn("ovs-vswitchd", self._socket)
        self.vsctl("add-br", BRIDGE, "--", "set", "bridge", BRIDGE, "datapath_type=netdev", "fail_mode=standalone")

    def _spawn(self, program: str, *arguments: str) -> None:
        with (self._directory / f"{program}.log").open("ab") as log:
            self._processes.append(subprocess.Popen(
                [program, *arguments, f"--unixctl={self._directory}/{program}.ctl"], env=self._environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True))

    def _until(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + TIMEOUT
        while not condition():
            if time.monotonic() > end or any(process.poll() is not None for process in self._processes):
                logs = "".join(path.read_text()[-2000:] for path in self._directory.glob("*.log"))
                raise RuntimeError(f"Open vSwitch did not start: {logs}")
            time.sleep(0.05)

    def vsctl(self, *arguments: str) -> str:
        """:raises CalledProcessError: with the command's words in ``stderr``"""
        return self._run("ovs-vsctl", f"--db={self._socket}", f"--timeout={TIMEOUT}", *arguments).strip()

    def _run(self, *command: str) -> str:
        return subprocess.run(command, env=self._environment, check=True, capture_output=True, text=True,
                              timeout=2 * TIMEOUT).stdout

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait(TIMEOUT)
        self._home.remove()


    @property
    def environment(self) -> dict[str, str]:
        """With which other programs find it."""
        return {"OVS_RUNDIR": str(self._directory)}


@functools.cache
def _shared() -> Daemons:
    daemons = Daemons()
    atexit.register(daemons.stop)
    daemons.start()
    return daemons


_lock = threading.Lock()


def shared() -> Daemons:
    with _lock:
        return _shared()


class OpenVSwitch(fixtures.Fixture):
    """Configures os-vif to use the switch, and acts in this process instead of its privileged daemon."""

    bridge = BRIDGE

    def _setUp(self) -> None:
        self._daemons = shared()
        os_vif.initialize()
        cfg.CONF.set_override("ovsdb_connection", self._daemons.connection, "os_vif_ovs")
        self.addCleanup(cfg.CONF.clear_override, "ovsdb_connection", "os_vif_ovs")
        privsep.vif_plug.set_client_mode(False)
        self.addCleanup(privsep.vif_plug.set_client_mode, True)
        self.addCleanup(self._remove_ports)

    def ports(self) -> list[str]:
        return self._daemons.vsctl("list-ports", BRIDGE).split()

    def interface(self, name: str) -> dict[str, Any]:
        """A row of the database's table of interfaces: ``external_ids``, ``error``, ``ofport``, ``mtu``…"""
        columns = "external_ids,error,ofport,mtu"
        found = json.loads(self._daemons.vsctl("--format=json", f"--columns={columns}", "list", "Interface", name))
        return {name: dict(value[1]) if isinstance(value, list) and value[0] == "map" else value
                for name, value in zip(found["headings"], found["data"][0], strict=True)}

    def _remove_ports(self) -> None:
        for port in self.ports():
            self._daemons.vsctl("--if-exists", "del-port", BRIDGE, port)
