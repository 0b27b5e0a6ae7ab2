# SPDX-License-Identifier: Apache-2.0
"""Debian's registry for images, on loopback, in a directory that goes with it."""

import shutil
import subprocess
from pathlib import Path

import fixtures
import requests

from tests.waiting import await_that

HOST = "127.0.0.1:5000"  # the tests have a network of their own
USER, WORD = "somebody", "a-test-password"
HASH = "$2b$04$UBj01HN.ZV1HKIU9PHBUI.RB99eKVVHW7mwxe.6bhk6yls3coZw7."  # bcrypt of WORD, the only form it takes
STOP_TIMEOUT = 30  # s
CONFIGURATION = """
version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {directory}/data}}}}
http: {{addr: {host}}}
{auth}
"""


class Registry(fixtures.Fixture):
    """:param closed: only for USER with WORD
    :ivar directory: what it keeps
    """

    def __init__(self, closed: bool = False) -> None:
        self._closed = closed

    def _setUp(self) -> None:
        program = shutil.which("docker-registry")
        if program is None:
            raise RuntimeError("docker-registry is not on this machine. Run: sudo tools/install test")
        self.directory = directory = Path(self.useFixture(fixtures.TempDir()).path)
        (directory / "users").write_text(f"{USER}:{HASH}\n")
        auth = f"auth: {{htpasswd: {{realm: tests, path: {directory}/users}}}}" if self._closed else ""
        (directory / "config.yml").write_text(CONFIGURATION.format(directory=directory, host=HOST, auth=auth))
        with (directory / "log").open("wb") as log:
            process = subprocess.Popen([program, "serve", str(directory / "config.yml")], stdout=log, stderr=log)
        self.addCleanup(process.wait, STOP_TIMEOUT)
        self.addCleanup(process.terminate)

        def answers() -> bool:
            if process.poll() is not None:
                raise AssertionError(f"the registry ended: {(directory / 'log').read_text()[-2000:]}")
            try:
                return requests.get(f"http://{HOST}/v2/", timeout=5).status_code in (200, 401)
            except requests.ConnectionError:
                return False

        await_that(answers, "the registry answers")
