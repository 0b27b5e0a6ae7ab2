# SPDX-License-Identifier: Apache-2.0
"""Emulate a node as OpenNebula's front-end sees it: scripts, called as oned calls them, on the real LXD."""

import contextlib
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import fixtures

from containerhost.engines.lxd.engine import LxdEngine
from onedriver.setup import remotes
from tests.commands import python_path, script
from tests.forkserver import ForkServer
from tests.functional.lxd import Lxd, memlock
from tests.functional_one.vms import Machine

ROOT = Path(__file__).parents[2]
TIMEOUT = 120  # s for one action
BRIDGE = "one-br0"
VOLATILE = re.compile(r"<DISK_ID>(\d+)</DISK_ID><SIZE>(\d+)</SIZE><TARGET>\w+</TARGET><TYPE>fs")
# A tar that reads nothing, and ends like tar on a broken pipe.
DEAF = (f"exec {sys.executable} -c 'import select; end = select.poll(); end.register(0, 0); end.poll(); "
        "raise SystemExit(1)'")


class Result(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def reason(self) -> str:
        """Return what oned shows as the VM's error: every line that is none of the log."""
        return "".join(line for line in self.err.splitlines()
                       if not line.startswith(("ERROR: ", "INFO: ", "WARN: ", "DEBUG: ")))


#: What the commands of both drivers may load, and what finds the vendors' plug-ins.
LOADED = ("containerhost", "onedriver", "lxdone", "onedock", "stevedore.extension")


@functools.cache
def fork_server(path: str) -> ForkServer:
    """Return this process's server for modules that are found by ``path``."""
    assert path == python_path()
    return ForkServer(*LOADED)


class Node(fixtures.Fixture):
    """:param installed: the directory of the driver's commands; None makes commands of this repository
    :cvar driver: whose scripts are called
    :ivar forks: what a script calls runs in a process of the fork server; else it is started, as on a node
    :ivar lxd: its daemon
    :ivar engine: on it
    :ivar datastores: of OpenNebula, as the node sees them
    :ivar state: the driver's directory
    :ivar owners: directory of the allocation records
    """

    driver = "lxdone"
    forks = True

    def __init__(self, installed: Path | None = None) -> None:
        self._installed = installed

    def _setUp(self) -> None:
        self.lxd = self.useFixture(Lxd(quick=True))
        self.engine = self.lxd.engine
        base = Path(self.useFixture(fixtures.TempDir()).path)
        base.chmod(0o711)
        self.state, self.owners, self.datastores = base / "state", base / "owners", base / "datastores"
        self.remotes = base / "remotes"
        self.remotes.mkdir()
        remotes.install(self.remotes, "lxdone")
        self._conf = base / "lxdone.toml"
        self.configure()
        self._make_commands(base / "bin", {"lxdone": "lxdone", "lxdone-monitor": "onedriver.node.monitorclient",
                                           "lxdone-install": "lxdone.install"})
        self._make_network()

    def _make_commands(self, directory: Path, modules: Mapping[str, str]) -> None:
        self._commands, self._modules = directory, modules
        directory.mkdir()
        self._forked = directory / "forked"
        self._forked.mkdir()
        for name, module in modules.items():
            if not self._installed:
                script(directory / name, f"PYTHONPATH={python_path()} exec {sys.executable} -m {module}")
        if not self._installed:
            fork_server(python_path()).script(self._forked / self.driver, self.driver, directory / self.driver)

    def run_from(self, path: Path) -> None:
        """Let scripts start the commands of another checkout from now on."""
        self.forks = False
        for name, module in self._modules.items():
            script(self._commands / name, f"PYTHONPATH={path} exec {sys.executable} -P -m {module}")

    def _make_network(self) -> None:
        subprocess.run(["ip", "link", "add", BRIDGE, "type", "bridge"], check=True)
        self.addCleanup(subprocess.run, ["ip", "link", "delete", BRIDGE], check=True)

    def configure(self, more: str = "") -> None:
        self._conf.write_text(
            f'endpoint = "{self.lxd.socket}"\nstorage_pool = "{self.lxd.pool}"\nstate = "{self.state}"\n'
            f'owners = "{self.owners}"\ndatastores = "{self.datastores}"\nmemlock = "{memlock()}"\nstop_timeout = 20\n'
            + more)

    def give_disk(self, machine: Machine, content: Path | None = None) -> None:
        """Create the VM's disks as the transfer driver does before a deployment."""
        directory = self.datastores / "0" / str(machine.id)
        directory.mkdir(parents=True, exist_ok=True)
        shutil.copy(content or self.lxd.images["unified"], directory / "disk.0")
        self.give_volatile(machine)

    def give_volatile(self, machine: Machine) -> None:
        """Create missing volatile disks as the transfer driver does: files with nothing in them."""
        for number, size in VOLATILE.findall(machine.disks):
            file = self.datastores / "0" / str(machine.id) / f"disk.{number}"
            if not file.exists():
                file.touch()
                os.truncate(file, int(size) << 20)

    def run(self, action: str, argv: list[str], stdin: str) -> Result:
        """One action, as one_vmm_exec has ``ssh HOST bash -s`` do it."""
        script = self.remotes / "vmm" / self.driver / action
        words = " ".join(f"'{word}'" for word in argv)
        return self._shell(f"cat << 'EOT' | {script} {words}\n{stdin}\nEOT\n")

    def probe(self, name: str) -> Result:
        """A probe, as the monitoring client runs it."""
        probe = self.remotes / f"im/{self.driver}-probes.d" / name / self.driver
        return self._shell(f"{probe} {self.driver} 1 node1 < /dev/null\n")

    def command(self, line: str) -> Result:
        """A command that an administrator gives on the node."""
        return self._shell(f"{line}\n")

    def start_monitoring(self, configuration: str) -> Result:
        """Do as the front-end's run_monitord_client, which waits until no process can write to its output any more."""
        return self._monitoring(f"{self.driver} 3 node1", configuration)

    def stop_monitoring(self) -> Result:
        return self._monitoring(f"stop {self.driver} 3 node1")

    def _monitoring(self, words: str, configuration: str = "") -> Result:
        command = f"./monitord-client_control.sh {words}"
        return self._shell(f"cd {self.remotes}/im/{self.driver}.d; cat << 'EOT' | {command}\n{configuration}\nEOT\n")

    @property
    def environment(self) -> dict[str, str]:
        """Return what a script is started with, by which it starts the driver's commands as on a node."""
        path = ":".join(str(part) for part in (self._commands, self._installed, os.environ["PATH"]) if part)
        switch = {key: os.environ[key] for key in ("OVS_RUNDIR",) if key in os.environ}
        return {"PATH": path, f"{self.driver.upper()}_CONF": str(self._conf), "HOME": "/root",
                "LANG": "C.UTF-8", **switch}

    @property
    def quick_environment(self) -> dict[str, str]:
        """Return the same for a script that does not start the driver's commands, but asks for them."""
        environment = self.environment
        if not self.forks:
            return environment
        return environment | {"PATH": f"{self._forked}:{environment['PATH']}"}

    def limited(self, command: list[str], stdin: str, limit: float | None) -> Result:
        """A script without a shell, all of whose processes are killed after some seconds."""
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, env=self.environment if limit else self.quick_environment,
                                   start_new_session=True)
        try:
            out, err = process.communicate(stdin, timeout=limit or TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
        return Result(process.returncode, out, err)

    def _shell(self, script: str) -> Result:
        done = subprocess.run(["bash", "-s"], input=script, capture_output=True, text=True, timeout=TIMEOUT,
                              check=False, env=self.quick_environment)
        return Result(done.returncode, done.stdout, done.stderr)

    @contextlib.contextmanager
    def stuck(self, command: str, instead: str = "exec sleep 600") -> Iterator[None]:
        """A program that the driver calls does not end, or something else."""
        program = self._commands / command
        program.write_text(f"#!/bin/sh\n{instead}\n")
        program.chmod(0o755)
        yield
        program.unlink()

    @contextlib.contextmanager
    def begun(self, action: str, machine: Machine, *arguments: str, lcm: int = 3) -> Iterator[subprocess.Popen[bytes]]:
        """An action that runs; its processes are a group."""
        argv, xml = self._call(action, machine, arguments, lcm)
        with tempfile.TemporaryFile() as message:
            message.write(xml.encode())
            message.seek(0)
            process = subprocess.Popen([self.remotes / "vmm" / self.driver / action, *argv], stdin=message,
                                       env=self.environment, start_new_session=True)
        with process:
            yield process

    def act(self, action: str, machine: Machine, *arguments: str, lcm: int = 3) -> Result:
        """An action with the arguments that oned gives it for this VM."""
        return self.run(action, *self._call(action, machine, arguments, lcm))

    def _call(self, action: str, machine: Machine, arguments: Sequence[str], lcm: int) -> tuple[list[str], str]:
        """Return the arguments that oned gives an action for this VM, and its standard input."""
        deploy_id = machine.name
        before = {
            "deploy": [f"{self.datastores}//0/{machine.id}/deployment.0", "node1"],
            "save": [deploy_id, f"{self.datastores}//0/{machine.id}/checkpoint", "node1"],
            "restore": [f"{self.datastores}//0/{machine.id}/checkpoint", "node1", deploy_id],
            **{name: [deploy_id, "node1"] for name in ("shutdown", "cancel", "reboot", "reset")},
        }.get(action, [deploy_id, *arguments])
        xml = machine.deployment(lcm) if action == "deploy" else machine.message(lcm)
        return [*before, str(machine.id), "node1"], xml


class SecondNode(Node):
    """Another node: a project of the same LXD, and a driver that knows nothing of the first one's.

    :param datastores: those of another node, as shared storage has it; None gives it its own
    :param pool: of its containers; None is the first one's
    """

    project = "second"

    def __init__(self, datastores: Path | None = None, pool: str | None = None) -> None:
        super().__init__()
        self._shared = datastores
        self._pool = pool

    def _setUp(self) -> None:
        super()._setUp()
        client = self.lxd.daemon.client()
        client.request("post", "projects", asked="make the project", json={
            "name": self.project, "config": {"features.profiles": "false", "features.networks": "false"}})
        self.addCleanup(client.request, "delete", "projects", self.project, asked="remove the project")
        self.engine = LxdEngine(self.lxd.daemon.client(project=self.project), locks=self.lxd.daemon.base)
        self.addCleanup(self._empty)
        if self._shared:
            self.datastores = self._shared
        self.configure(f'project = "{self.project}"\n')

    def configure(self, more: str = "") -> None:
        super().configure(more)
        if self._pool:
            self._conf.write_text(self._conf.read_text().replace(f'"{self.lxd.pool}"', f'"{self._pool}"'))

    def _make_network(self) -> None:
        """The first one's serves both."""

    def _empty(self) -> None:
        for container in self.engine.containers():
            self.engine.delete(container.name)
        for image in self.engine.client.images():
            self.engine.client.delete_image(image["fingerprint"])
