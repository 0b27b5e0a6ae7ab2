# SPDX-License-Identifier: Apache-2.0
"""Share the daemon and a small container's spec between the functional tests of containerhost."""

import os
import re
from pathlib import Path
from typing import Any

from containerhost.engines.lxd.engine import LxdEngine
from containerhost.engines.spec import ContainerSpec, Cpu, Memory, RootDisk
from tests.conformance.engine import frame
from tests.conformance.engine.frame import MiB
from tests.functional.lxd import POOL, Lxd
from tests.waiting import await_that


class LxdTestCase(frame.EngineFrame):
    label = "nova.uuid"

    def setUp(self) -> None:
        super().setUp()
        self.lxd = self.useFixture(Lxd())
        self.daemon, self.engine = self.lxd.daemon, self.lxd.engine

    def another(self) -> LxdEngine:
        return LxdEngine(self.daemon.client(), locks=self.daemon.base)

    def spec(self, name: str = "c1", **more: Any) -> ContainerSpec:
        parts: dict[str, Any] = {
            "image": self.lxd.imported(), "cpu": Cpu(1), "memory": Memory(128 * MiB), "root": RootDisk(POOL),
            "labels": {self.label: f"of-{name}"}}
        return ContainerSpec(name=name, **(parts | more))

    def up(self, name: str = "c1") -> None:
        """Wait until busybox's init handles signals, SIGTSTP last: one that asks it to end would be lost before."""
        status = Path(f"/proc/{self.engine.pid(name)}/status")
        await_that(lambda: re.search(r"SigCgt:\t0+80000\n", status.read_text()), "the init handles signals")

    def left(self, name: str = "c1") -> list[str]:
        return leftovers(self.lxd, name)

    def directory(self) -> Path:
        return self.lxd.daemon.base


def leftovers(lxd: Lxd, name: str) -> list[str]:
    """Traces of a container below the daemon's directory, and mounts that carry its name.

    Its log directory stays by LXD's own choice (LXD expires logs) and is empty for the next container of that name; so
    does the one below run/ that Incus makes.
    """
    found = []
    for directory, names, files in os.walk(lxd.daemon.directory):
        if directory == str(lxd.daemon.directory):
            names[:] = [kept for kept in names if kept not in ("logs", "run")]
        found += [os.path.join(directory, entry) for entry in (*names, *files) if name == entry]
    with open("/proc/self/mounts", encoding="utf-8") as table:
        found += [line.split()[1] for line in table if name in line.split()[1].split("/")]
    return found
