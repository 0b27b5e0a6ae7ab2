# SPDX-License-Identifier: Apache-2.0
"""Changes of a container beside starts of it: in the end its record and what it has agree."""

import concurrent.futures
import contextlib
import functools
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import fixtures

from containerhost.devices.grants import Grant
from containerhost.engines.docker import usage
from containerhost.errors import EngineConflict, EngineError
from containerhost.linux.sysfs import Host
from tests.commands import script
from tests.functional_docker.base import DockerDeviceCase
from tests.functional_docker.dockerd import ROOT, Daemon
from tests.waiting import await_that

STARTED = 2.0  # s in which a call that waits for nothing is long over
ROUNDS = 12


class Gate:
    """Stands before runc, and keeps one of its commands waiting while the file ``hold`` names it.

    :ivar commands: the directory of the installed commands, for a daemon
    """

    def __init__(self, directory: Path) -> None:
        self.commands, self._path = directory / "commands", directory / "path"
        self._hold, self._reached = directory / "hold", directory / "reached"
        self.commands.mkdir()
        self._path.mkdir()
        path = f"export PATH={self._path}:$PATH"
        begin = "import sys; from containerhost.engines.docker.ociruntime import main; sys.exit(main())"
        shutil.copy2(ROOT / "bin/containerhost-docker-runtime", directory)
        script(directory / "containerhost-ociruntime", f"PYTHONPATH={ROOT} exec {sys.executable} -c '{begin}'")
        script(self.commands / "containerhost-docker-runtime", f"{path}; exec {directory}/containerhost-docker-runtime")
        script(self._path / "runc", f"""
if [ -e {self._hold} ]; then
    for word; do
        if [ "$word" = "$(cat {self._hold})" ]; then
            touch {self._reached}
            while [ -e {self._hold} ]; do sleep 0.02; done
        fi
    done
fi
exec {shutil.which("runc")}""")

    @contextlib.contextmanager
    def held(self, command: str) -> Iterator[None]:
        self._reached.unlink(missing_ok=True)
        self._hold.write_text(command)
        try:
            yield
        finally:
            self._hold.unlink(missing_ok=True)

    def await_reached(self) -> None:
        await_that(self._reached.exists, "runc is called")


class StartTest(DockerDeviceCase):
    """Its daemon's runc waits at the command that a test names."""

    def setUp(self) -> None:
        self.gate = Gate(Path(self.useFixture(fixtures.TempDir()).path))
        self.own = Daemon(commands=self.gate.commands)
        super().setUp()
        self.pool = self.enterContext(concurrent.futures.ThreadPoolExecutor(4))

    def made(self, *, bare: bool = False) -> tuple[Grant, ...]:
        grants = self.taken()
        self.engine.create(self.spec(parts=grants))
        if bare:
            self.engine.update_devices("c1", ())
        return grants

    def beside_start(self, command: str, change: Callable[[Grant], None], grants: Iterable[Grant]) -> None:
        """Change the container from its state before a start that is under way: Docker reports that when it is done."""
        asked, seen = self.engine.client.container, threading.Event()

        def container(name: str) -> Mapping[str, Any]:
            found = asked(name)
            seen.set()
            self.gate.await_reached()
            return found

        with self.gate.held(command), mock.patch.object(self.engine.client, "container", container):
            changed = self.pool.submit(lambda: [change(grant) for grant in grants])
            self.assertTrue(seen.wait(60))
            start = self.pool.submit(self.engine.client.start, "c1")
            self.gate.await_reached()
            concurrent.futures.wait([changed], STARTED)
        start.result(60)
        changed.result(60)

    def test_detach_during_start_takes_the_devices(self) -> None:
        grants = self.made()
        for command in ("create", "start"):
            self.beside_start(command, functools.partial(self.engine.detach, "c1"), grants)
            self.engine.verify("c1", ())
            self.all_back()
            self.engine.stop("c1", timeout=60, force=True)
            self.engine.update_devices("c1", grants)

    def test_attach_during_start_brings_the_devices(self) -> None:
        grants = self.made(bare=True)
        for command in ("create", "start"):
            self.beside_start(command, functools.partial(self.engine.attach, "c1"), grants)
            self.engine.verify("c1", grants)
            self.engine.stop("c1", timeout=60, force=True)
            self.engine.update_devices("c1", ())

    def test_exchange_of_parts_during_start_is_refused(self) -> None:
        grants = self.made()
        self.assertRaises(EngineConflict, self.beside_start, "start",
                          lambda grant: self.engine.update_devices("c1", ()), grants[:1])
        self.engine.verify("c1", grants)


class FailingRuntimeTest(DockerDeviceCase):
    def test_runtime_that_fails_beside_runc_leaves_nothing(self) -> None:
        """The record's interfaces, which it reads while runc works, cannot be understood."""
        grants = self.taken()
        self.engine.create(self.spec(parts=grants))
        container = self.engine.client.container("c1")["Id"]
        record = self.docker.daemon.records / f"{container}.json"
        content = record.read_text()
        record.write_text(json.dumps(json.loads(content) | {"netdevs": [{}]}))
        error = self.assertRaises(EngineError, self.engine.start, "c1")
        self.assertIn("cannot be trusted", str(error))
        self.assertIsNone(usage.first_process_of(Host(), container))
        self.assertEqual([], subprocess.run(["pgrep", "-f", f"runc.*create.*{container}"], capture_output=True,
                                            text=True, check=False).stdout.split())
        record.write_text(content)
        self.engine.start("c1")
        self.engine.verify("c1", grants)


class RandomStartTest(DockerDeviceCase):
    def test_starts_and_changes_at_once_agree_in_the_end(self) -> None:
        grants = self.taken()
        self.engine.create(self.spec(parts=grants))
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for number in range(ROUNDS):
                change = self.engine.attach if number % 2 else self.engine.detach
                start = pool.submit(self.engine.start, "c1")
                changed = pool.submit(lambda do: [do("c1", grant) for grant in grants], change)
                start.result(120)
                changed.result(120)
                self.engine.verify("c1", grants if number % 2 else ())
                self.engine.stop("c1", timeout=60, force=True)
