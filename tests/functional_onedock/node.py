# SPDX-License-Identifier: Apache-2.0
"""A node of OpenNebula with Docker: its scripts, called as oned calls them, on a real dockerd."""

import contextlib
import io
import logging
import shutil
import subprocess
from pathlib import Path
from unittest import mock

import fixtures

import onedock.node
from onedock import imageref
from onedock.imageref import ImageRef
from onedriver import program
from tests.functional.lxd import memlock
from tests.functional_docker.dockerd import Daemon, Docker
from tests.functional_one import node
from tests.functional_one.node import ROOT, Result
from tests.functional_one.vms import Machine


class DockerNode(node.Node):
    """:param daemon: one of its own; None is that of all tests
    :param installed: see :class:`node.Node`
    :ivar docker: its daemon
    :ivar inline: the driver is called within this process, without the script: for many actions, one after another
    """

    driver = "onedock"
    inline = False

    def __init__(self, daemon: Daemon | None = None, installed: Path | None = None) -> None:
        super().__init__(installed)
        self._daemon = daemon

    def _setUp(self) -> None:
        self.docker = self.useFixture(Docker(self._daemon))
        base = Path(self.useFixture(fixtures.TempDir()).path)
        base.chmod(0o711)
        self.base, self.state, self.owners, self.datastores = base, base / "state", base / "owners", base / "datastores"
        self.remotes = base / "remotes"
        for directory in ("vmm/onedock", "im/onedock.d", "im/onedock-probes.d"):
            shutil.copytree(ROOT / "etc/opennebula/remotes" / directory, self.remotes / directory)
        self._conf = base / "onedock.toml"
        self.configure()
        self._make_commands(base / "bin", {"onedock": "onedock", "onedock-monitor": "onedriver.node.monitorclient",
                                           "onedock-install": "onedock.install"})
        self._make_network()

    def configure(self, more: str = "") -> None:
        self._conf.write_text(
            f'endpoint = "{self.docker.daemon.endpoint}"\nrecords = "{self.docker.daemon.records}"\n'
            f'state = "{self.state}"\nowners = "{self.owners}"\ndatastores = "{self.datastores}"\n'
            f'memlock = "{memlock()}"\nstop_timeout = 3\n' + more)

    def run(self, action: str, argv: list[str], stdin: str) -> Result:
        if not self.inline:
            return super().run(action, argv, stdin)
        out, err = io.StringIO(), io.StringIO()
        log = logging.StreamHandler(err)
        log.setFormatter(program.OnedFormatter())
        with (fixtures.LogHandler(log), fixtures.EnvironmentVariable("ONEDOCK_CONF", str(self._conf)),
              contextlib.redirect_stdout(out), contextlib.redirect_stderr(err),
              mock.patch("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))):
            status = onedock.node.COMMAND.vmm(action, argv)
        return Result(status, out.getvalue(), err.getvalue())

    def directory(self, machine: Machine) -> Path:
        found = self.datastores / "0" / str(machine.id)
        found.mkdir(parents=True, exist_ok=True)
        return found

    def give_disk(self, machine: Machine, content: Path | None = None, image: str = "polite") -> None:
        """Create the VM's disk as the transfer driver does before a deployment."""
        imageref.write(self.directory(machine) / "disk.0", ImageRef(self.image(image), f"docker://{image}"))

    def image(self, name: str) -> str:
        return str(self.docker.daemon.api().inspect_image(name)["Id"])

    def give_file_system(self, machine: Machine, number: int, size: int = 8) -> Path:
        """A volatile disk of ``size`` MiB, as the transfer driver makes it."""
        file = self.directory(machine) / f"disk.{number}"
        with file.open("wb") as disk:
            disk.truncate(size << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", str(file)], check=True, capture_output=True)
        return file
