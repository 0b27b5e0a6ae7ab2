# SPDX-License-Identifier: Apache-2.0
"""The driver on a real LXD and an emulated host, without nova's services around it."""

import uuid
from pathlib import Path
from typing import Any

import emulated  # noqa: F401  (it sets the path)
import fixtures
import nova.conf
from nova import objects, rpc
from oslo_messaging import conffixture

objects.register_all()  # the driver's signatures name them

from containerhost.engines.lxd.images import Images  # noqa: E402
from nova_lxd_ext.driver import LXDDriver  # noqa: E402
from nova_lxd_ext.image.images import Cache  # noqa: E402
from tests.functional.lxd import Lxd, memlock  # noqa: E402
from tests.unit.nova import records  # noqa: E402


def nothing(**how: Any) -> None:
    """Do nothing where a server would be saved: there is no database."""


class LocalGlance:
    """Gives out one file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def download(self, context: Any, id_or_uri: str, data: Any = None, dest_path: str | None = None,
                 trusted_certs: Any = None) -> None:
        Path(dest_path or "").write_bytes(self._path.read_bytes())


class Stage(fixtures.Fixture):
    """:ivar driver: nova's driver, started
    :ivar conf: its configuration
    :ivar image: fingerprint of the image that is in its cache
    """

    def _setUp(self) -> None:
        self.lxd = self.useFixture(Lxd())
        directory = Path(self.useFixture(fixtures.TempDir()).path)
        directory.chmod(0o711)
        self._configure(directory)
        rpc.init(nova.conf.CONF)
        self.addCleanup(rpc.cleanup)
        self._without_database()
        self.driver = LXDDriver(None)
        self.addCleanup(self.driver.cleanup_host, "bench")
        self.driver.init_host("bench")
        self.image_meta = objects.ImageMeta.from_dict({"id": records.IMAGE})
        cache = Cache(Images(self.lxd.engine.client), LocalGlance(self.lxd.images["unified"]), directory / "downloads",
                      lambda: self.lxd.engine.server().architectures)
        self.image = cache.ensure(None, self.image_meta, 1)

    def _without_database(self) -> None:
        """Functions, not mocks: those remember every call, and what it was called with, as long as they live."""
        node = objects.ComputeNode(id=records.NODE)
        for of, name, found in ((objects.ComputeNode, "get_by_host_and_nodename", node),
                                (objects.InstanceList, "get_by_host", objects.InstanceList()),
                                (objects.MigrationList, "get_by_filters", objects.MigrationList()),
                                (objects.VirtualInterfaceList, "get_by_instance_uuid", []),
                                (objects.BlockDeviceMappingList, "get_by_instance_uuid", [])):
            self.useFixture(fixtures.MockPatchObject(of, name, lambda *arguments, found=found, **options: found))

    def _configure(self, directory: Path) -> None:
        conf = self.conf = nova.conf.CONF
        conf([], project="nova", default_config_files=[], default_config_dirs=[])
        conf.set_override("instances_path", str(directory / "instances"))
        self.useFixture(conffixture.ConfFixture(conf)).transport_url = "fake:/"
        for name, value in (("endpoint", self.lxd.socket), ("storage_pool", self.lxd.pool),
                            ("owners_dir", str(directory / "owners")), ("rdma_memlock", memlock()),
                            # Raw LXD calls give a VF no GUIDs of its own: neither shall the driver, to compare.
                            ("rdma_guid_policy", "keep")):
            conf.set_override(name, value, "lxd")

    def server(self, number: int, *claims: tuple[str, str]) -> objects.Instance:
        server = records.instance(*claims, id=number, uuid=str(uuid.UUID(int=number)), flavor_changes={
            "vcpus": 1, "memory_mb": 128, "root_gb": 1})
        server.save = nothing
        return server

    def spawn(self, server: objects.Instance) -> None:
        self.driver.spawn(None, server, self.image_meta, [], None, {})
