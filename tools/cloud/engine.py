# SPDX-License-Identifier: Apache-2.0
"""Run the cloud's LXD, or Incus where a distribution has no package of it, with a directory of its own."""

import dataclasses
import json
import resource
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.cloud import probes
from tools.cloud.daemons import Daemon
from tools.cloud.layout import FIRST

POOL = "demo"


@dataclasses.dataclass(frozen=True)
class Flavour:
    """Describe what differs between LXD and Incus."""

    name: str
    daemon: str
    client: str
    directory_variable: str
    client_variable: str


LXD = Flavour("LXD", "lxd", "lxc", "LXD_DIR", "LXD_CONF")
INCUS = Flavour("Incus", "incusd", "incus", "INCUS_DIR", "INCUS_CONF")
# Debian's and Ubuntu's incus keep the daemon out of PATH.
PLACES = "/usr/sbin:/usr/bin:/usr/libexec/incus:/usr/lib/incus"


class Engine:
    """:param directory: everything the daemon keeps
    :param suffix: of the compute host that it is on
    """

    def __init__(self, directory: Path, suffix: str = FIRST) -> None:
        self.directory = directory
        self.name = f"engine{suffix}"
        self.flavour, self._program = installed()

    @property
    def socket(self) -> Path:
        return self.directory / "unix.socket"

    @property
    def environment(self) -> dict[str, str]:
        return {self.flavour.directory_variable: str(self.directory),
                self.flavour.client_variable: str(self.directory / "client")}

    def version(self) -> str:
        return subprocess.run((self._program, "--version"), capture_output=True, text=True, check=True).stdout.strip()

    def daemon(self) -> Daemon:
        self.directory.mkdir(parents=True, mode=0o711)
        return Daemon(self.name, (self._program, "--group", "root"), ready=self._answers, environment=self.environment)

    def create_pool(self) -> None:
        self.client("storage", "create", POOL, "dir")

    def listen(self, address: str) -> None:
        """To other hosts' engines, for servers that move.

        :param address: ``address:port``
        """
        self.client("config", "set", "core.https_address", address)

    def client(self, *arguments: str, limit: float = 60) -> str:
        """Run the engine's own command (``lxc``, ``incus``) and return what it prints.

        :raises CommandFailed: with its own words
        """
        done = self._run(arguments, limit)
        if done.returncode:
            raise CommandFailed(f"{self.flavour.client} {' '.join(arguments)} failed: {done.stderr.strip()}")
        return done.stdout

    def query(self, path: str) -> Any:
        """GET of the REST API; the metadata of its answer."""
        return json.loads(self.client("query", path))

    def inside(self, container: str, *command: str, limit: float = 30) -> "Output":
        """Run a command in a container; a status that is not 0 is an answer, not an error."""
        done = self._run(("exec", container, "--", *command), limit)
        return Output(done.returncode, done.stdout.strip(), done.stderr.strip())

    def push(self, path: Path, container: str, target: str) -> None:
        """Put a program into a container.

        :raises CalledProcessError: it cannot be put there
        """
        self._run(("file", "push", "--mode", "755", str(path), f"{container}{target}"), 60).check_returncode()

    def shut_down(self, limit: float = 60) -> None:
        """End every container and the daemon."""
        subprocess.run((self._program, "shutdown", "--timeout", "5"), env=self._env(), stdin=subprocess.DEVNULL,
                       capture_output=True, timeout=limit, check=False)

    def _answers(self) -> bool:
        return self.socket.exists() and probes.succeeds((self.flavour.client, "query", "/1.0"), self._env())

    def _run(self, arguments: tuple[str, ...], limit: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run((self.flavour.client, *arguments), env=self._env(), stdin=subprocess.DEVNULL, text=True,
                              capture_output=True, timeout=limit, check=False)

    def _env(self) -> Mapping[str, str]:
        return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(self.directory), **self.environment}


def installed() -> tuple[Flavour, str]:
    """Return the daemon of this machine and the path of its program.

    :raises FileNotFoundError: it has neither
    """
    for flavour in (LXD, INCUS):
        if path := shutil.which(flavour.daemon, path=PLACES):
            return flavour, path
    raise FileNotFoundError(f"Neither lxd nor incusd is in {PLACES}. Run: sudo tools/install demo")


@dataclasses.dataclass(frozen=True)
class Output:
    status: int
    out: str
    err: str


class CommandFailed(Exception):
    """The engine's own command refused what was asked."""


def lockable_memory() -> str:
    """Return how much memory a container may lock here, for ``[lxd] rdma_memlock``.

    ``unlimited``, or the bytes beyond which this machine does not let even root go (a root without CAP_SYS_RESOURCE).
    """
    _soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if hard == resource.RLIM_INFINITY:
        return "unlimited"
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except (ValueError, PermissionError):
        return str(hard)
    return "unlimited"
