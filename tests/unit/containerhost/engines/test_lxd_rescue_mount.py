# SPDX-License-Identifier: Apache-2.0
from types import SimpleNamespace
from typing import Any

import testtools

from containerhost.engines.lxd import rescue_mount
from containerhost.engines.lxd.client import Settings
from containerhost.engines.spec import RescueMount
from containerhost.errors import SpecError

MAPPED = '[{"Isuid":true}]'
ISOLATED = {"security.privileged": "false", "security.idmap.isolated": "true", "volatile.idmap.base": "165536"}


class RescueMountTest(testtools.TestCase):
    def client(self, driver: str = "btrfs", config: Any = ISOLATED, **broken: Any) -> Any:
        instance = {"name": "c1-rescued", "config": config, "expanded_devices": {
            "root": {"type": "disk", "path": "/", "pool": "fast"}, "gpu-0": {"type": "gpu"}}} | broken
        return SimpleNamespace(settings=Settings(endpoint="/var/lib/lxd/unix.socket"),
                               pool=lambda name: {"driver": driver}, instance=lambda name: (instance, "etag"))

    def body(self, client: Any) -> tuple[dict[str, str], dict[str, str]]:
        found = rescue_mount.body(client, {"name": "c1", "config": {"a": "b"}, "devices": {"root": {}}},
                                  RescueMount("c1-rescued", "/mnt/rescue"))
        self.assertEqual(("c1", {}), (found["name"], found["devices"]["root"]))
        self.assertEqual("b", found["config"].pop("a"))
        return found["config"], found["devices"]["rescue_mount"]

    def test_owners_are_the_same_inside(self) -> None:
        shared = {"security.privileged": "false", "security.idmap.isolated": "false", "volatile.idmap.base": "0"}
        privileged = {"security.privileged": "true"}
        table = [
            ("isolated, shifted on disk", ISOLATED | {"volatile.last_state.idmap": MAPPED}, "165536", None),
            ("isolated, shifted by the mount", ISOLATED | {"volatile.last_state.idmap": "[]"}, "165536", "true"),
            ("isolated, never started", ISOLATED, "165536", "true"),
            ("one map for all", shared | {"volatile.last_state.idmap": MAPPED}, None, None),
            ("privileged", privileged | {"volatile.last_state.idmap": "[]"}, None, None),
        ]
        for title, config, base, shift in table:
            with self.subTest(title):
                ids, device = self.body(self.client(config=config))
                self.assertEqual((base, shift), (ids.get("security.idmap.base"), device.get("shift")))
                self.assertEqual({key for key in config if key.startswith("security.")},
                                 set(ids) - {"security.idmap.base"})

    def test_where_the_root_lies(self) -> None:
        for project, directory in (("default", "c1-rescued"), ("hpc", "hpc_c1-rescued")):
            _, device = self.body(self.client(project=project))
            self.assertEqual(("disk", f"/var/lib/lxd/storage-pools/fast/containers/{directory}/rootfs", "/mnt/rescue"),
                             (device["type"], device["source"], device["path"]))

    def test_a_pool_that_hides_its_roots_is_refused(self) -> None:
        for driver in ("zfs", "lvm", "ceph"):
            error = self.assertRaises(SpecError, self.body, self.client(driver))
            self.assertIn(driver, str(error))
