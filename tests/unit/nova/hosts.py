# SPDX-License-Identifier: Apache-2.0
"""Emulated hosts as static trees, for unit tests of what the driver reports about a host."""

import fixtures

from containerhost.engines.contract import PoolUsage, ServerInfo
from containerhost.linux.sysfs import Host
from tests.fakehost import description, tree


class FakeHost(fixtures.Fixture):
    """:ivar host: reads the tree of tests/fakehost/hosts/<name>.yaml"""

    def __init__(self, name: str) -> None:
        self._name = name

    def _setUp(self) -> None:
        root = self.useFixture(fixtures.TempDir()).path
        tree.write(description.load(self._name), f"{root}/host")
        self.host = Host(f"{root}/host")


class Engine:
    """The two whole-host questions of an engine, answered from memory."""

    def __init__(self, server: ServerInfo, pool: PoolUsage) -> None:
        self._server = server
        self._pool = pool

    def server(self) -> ServerInfo:
        return self._server

    def pool(self, name: str) -> PoolUsage:
        assert name == self._pool.name
        return self._pool


LXD = ServerInfo("lxd", "5.0.2", ("x86_64", "i686"), "6.1.0", "node1")
INCUS = ServerInfo("incus", "6.0.4", ("x86_64", "i686"), "6.1.0", "node1")
POOL = PoolUsage("default", "btrfs", 500 * 1024 ** 3, 20 * 1024 ** 3 + 1)
