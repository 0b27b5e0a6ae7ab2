# SPDX-License-Identifier: Apache-2.0
"""The driver on an emulated host, a tree of plain directories, with containers that do not run.

Replaced are root's actions on containers, and the look into a container after its start.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from nova import objects

objects.register_all()  # the driver's signatures name them

from containerhost.engines.lxd.engine import LxdEngine  # noqa: E402
from containerhost.linux.sysfs import Host  # noqa: E402
from nova_lxd_ext import backend  # noqa: E402
from nova_lxd_ext import driver as _driver  # noqa: E402, F401  (nova loads it by its name, in each process)
from tests.unit.nova.fakes import NoPrivileges  # noqa: E402

build = backend.build


class NothingRuns(NoPrivileges):
    def stacked(self) -> list[tuple[int, tuple[str, ...]]]:
        return []

    def end_copies(self, container: str) -> int:
        return 0

    def end_helpers(self, pid: int) -> int:
        return 0

    def set_vf_guids(self, netdev: str, index: int, node_guid: str, port_guid: str) -> None:
        pass

    def remove_altnames(self, pid: int, name: str) -> None:
        pass

    def forget_nodes(self, server: int, container: str, pid: int, known: Collection[str]) -> int:
        return 0


def simulate(tree: Path) -> None:
    """Let drivers that are made from now on have the emulated host's devices, and containers that do not run."""
    def on_tree(conf: Any, host: Host | None = None, virtapi: Any = None) -> backend.Backend:
        return build(conf, Host(tree), virtapi)

    backend.build, backend.privileged = on_tree, NothingRuns
    LxdEngine.verify = lambda *arguments: None  # type: ignore[method-assign]
