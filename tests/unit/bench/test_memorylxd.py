# SPDX-License-Identifier: Apache-2.0
import io
import tempfile
import threading
from pathlib import Path

import testtools

from bench.manyhosts import memorylxd
from containerhost import errors
from containerhost.engines.contract import Status
from containerhost.engines.lxd.client import LxdClient, Settings
from containerhost.engines.lxd.engine import LxdEngine
from containerhost.engines.lxd.images import Images
from containerhost.engines.spec import ContainerSpec, Cpu, Memory, RootDisk

DESCRIPTION = {"api_extensions": ["kernel_limits"], "auth": "trusted", "environment": {
    "server": "lxd", "server_version": "5.0.2", "architectures": ["x86_64"], "kernel_version": "6.1", "server_pid": 1,
    "server_name": "host-1"}}
SPEC = ContainerSpec("one", "f" * 64, Cpu(1), Memory(1 << 30), RootDisk("demo"), labels={"uuid": "7"})


class MemoryLxdTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = Path(directory.name)
        self.log = io.StringIO()
        server = memorylxd.Server(self.path / "1.socket", memorylxd.Daemon(DESCRIPTION, memorylxd.Store()), self.log)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        for clean_up in (server.server_close, thread.join, server.shutdown):
            self.addCleanup(clean_up)
        self.client = LxdClient(Settings(str(self.path / "1.socket")))
        self.engine = LxdEngine(self.client, locks=self.path)

    def test_life_of_a_container(self) -> None:
        self.engine.create(SPEC)
        self.engine.start("one")
        (found,) = self.engine.containers()
        self.assertEqual(("one", Status.RUNNING, "7"), (found.name, found.status, found.labels["uuid"]))
        self.engine.relabel("one", {"uuid": "8"})
        self.assertEqual("8", self.engine.container("one").labels["uuid"])
        self.engine.stop("one", timeout=1)
        self.engine.delete("one")
        self.assertEqual((), self.engine.containers())
        self.assertRaises(errors.EngineNotFound, self.engine.container, "one")

    def test_image_is_found_by_its_alias(self) -> None:
        images = Images(self.client)
        self.assertIsNone(images.find("glance-7"))
        made = images.import_split(b"metadata", io.BytesIO(b"root"), "glance-7", {"id": "7"})
        found = images.find("glance-7")
        self.assertEqual((made, {"id": "7"}), found and (found.fingerprint, found.properties))

    def test_events_stay_open(self) -> None:
        events = self.engine.events()
        self.addCleanup(events.close)
        self.assertRaises(errors.EngineTimeout, events.receive, 0.05)

    def test_requests_are_noted_without_names(self) -> None:
        self.engine.server()
        self.assertRaises(errors.EngineNotFound, self.engine.container, "one")
        self.assertEqual("GET /instances/NAME", self.log.getvalue().splitlines()[-1])
