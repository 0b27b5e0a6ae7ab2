# SPDX-License-Identifier: Apache-2.0
"""A front-end beside the node: its datastore, and its drivers' scripts called as one_datastore and one_tm call them."""

import base64
import shlex
from pathlib import Path

import fixtures

from onedock.datastore.record import Record
from onedriver.setup import remotes
from tests.functional_one.node import Result
from tests.functional_onedock.node import DockerNode
from tests.unit.onedock.messages import message

# Replaces ssh: both hosts are this one, with a directory for each, and node2 perhaps its own
# options.
SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
if [ "$2" = node2 ] && [ -e ELSEWHERE ]; then export ONEDOCK_CONF=ELSEWHERE; fi
case $2 in node1|node2) exec sh -c "$3" ;; esac
echo "ssh: Could not resolve hostname $2: Name or service not known" >&2
exit 255
"""


class FrontEnd(fixtures.Fixture):
    """:ivar files: a directory from which images may be taken
    :ivar scripts: the front-end's directory of scripts
    :ivar datastore: the images' directory
    :ivar elsewhere: the driver's options on node2, if they are others there
    """

    def __init__(self, node: DockerNode) -> None:
        self._node = node

    def _setUp(self) -> None:
        base = self._node.base / "front-end"
        self.files, self.datastore, self.scripts = base / "files", base / "datastores/101", base / "remotes"
        for directory in (self.files, self.scripts):
            directory.mkdir(parents=True)
        remotes.install(self.scripts, "onedock")
        ssh = self._node._commands / "ssh"
        self.elsewhere = base / "node2.toml"
        ssh.write_text(SSH.replace("ELSEWHERE", str(self.elsewhere)))
        ssh.chmod(0o755)

    def ds(self, action: str, image: dict[str, str] | None = None, **attributes: str) -> Result:
        stdin = base64.b64encode(message(self.datastore, image, self.files, **attributes)).decode()
        script = self.scripts / "datastore/onedock" / action
        return self._node.command(f"{shlex.join([str(script), '7'])} <<< '{stdin}'")

    def tm(self, action: str, *arguments: object, vm: int = 1, ds: int = 101) -> Result:
        script = self.scripts / "tm/onedock" / action
        return self._node.command(shlex.join([str(script), *map(str, arguments), str(vm), str(ds)]) + " < /dev/null")

    def place(self, name: str = "disk.0", host: str = "node1", vm: int = 1) -> str:
        """As oned writes it, double slashes included."""
        return f"{host}:{self.directory(host).parent}//0/{vm}" + (f"/{name}" if name else "")

    def directory(self, host: str = "node1") -> Path:
        """Return the directory of the host's system datastore."""
        return self._node.datastores / "0" if host == "node1" else self._node.base / host / "0"

    def record(self, source: str) -> Record:
        return Record.read(Path(source))

    def left(self) -> list[str]:
        places = [self.datastore, self.directory("node1"), self.directory("node2")]
        return sorted(str(path) for place in places if place.exists() for path in place.rglob("*")
                      if not path.is_dir() and path.name != ".monitor")
