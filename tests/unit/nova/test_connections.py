# SPDX-License-Identifier: Apache-2.0
import dataclasses
from pathlib import Path

import fixtures
import nova.conf
import testtools
from oslo_config import fixture as config_fixture

from nova_lxd_ext.storage import connections, directories
from nova_lxd_ext.storage.connections import Connection
from tests.unit.containerhost.linux.test_records import lease, of_first_release, of_later_release
from tests.unit.nova import records

BEGUN = Connection("vol-1", "iscsi", {"auth_password": "hush"}, "/dev/vdb")
OTHER = "aaaaaaaa-5c56-4b0e-9b5e-0a6f1f6d9a02"


class ConnectionsTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        directory = self.useFixture(fixtures.TempDir()).path
        self.useFixture(config_fixture.Config(nova.conf.CONF)).config(instances_path=directory)

    def test_what_is_kept_is_found_until_it_is_forgotten(self) -> None:
        done = dataclasses.replace(BEGUN, device={"path": "/dev/null", "type": "block"})
        for connection, source in ((BEGUN, ""), (done, "/dev/null")):
            connections.keep(records.UUID, connection)
            self.assertEqual((connection,), connections.of(records.UUID))
            self.assertEqual(connection, connections.find(records.UUID, "vol-1"))
            self.assertEqual(source, connection.source)
        for _ in range(2):
            connections.forget(records.UUID, "vol-1")
            self.assertIsNone(connections.find(records.UUID, "vol-1"))
        self.assertEqual((), connections.of(records.UUID))

    def test_records_of_other_releases_are_used_and_their_fields_kept(self) -> None:
        connections.keep(records.UUID, BEGUN)
        (file,) = Path(directories.of(records.UUID)).rglob("*.json")
        for release in (of_first_release, of_later_release):
            release(file)
            self.assertEqual(BEGUN, connections.find(records.UUID, "vol-1"))
        connections.keep(records.UUID, dataclasses.replace(BEGUN, path="/dev/vdc"))
        self.assertEqual((9, [1]), lease(file))
        self.assertEqual("/dev/vdc", connections.of(records.UUID)[0].path)

    def test_secrets_are_for_nova_compute_alone(self) -> None:
        connections.keep(records.UUID, BEGUN)
        (kept,) = Path(directories.of(records.UUID)).rglob("*.json")
        self.assertEqual((0o600, 0o700), (kept.stat().st_mode & 0o777, kept.parent.stat().st_mode & 0o777))
        self.assertNotIn("hush", repr(BEGUN))

    def test_who_else_has_a_volume(self) -> None:
        for server in (records.UUID, OTHER):
            connections.keep(server, BEGUN)
        self.assertEqual((OTHER,), connections.others(records.UUID, "vol-1"))
        self.assertEqual((), connections.others(records.UUID, "vol-2"))
        self.assertEqual({records.UUID, OTHER}, set(connections.servers()))

    def test_an_id_is_no_path(self) -> None:
        for name in ("../../etc/passwd", "", "a/b"):
            self.assertRaises(ValueError, connections.find, records.UUID, name)

    def test_a_broken_record_keeps_nobody_from_the_others(self) -> None:
        connections.keep(records.UUID, BEGUN)
        (directories.of(records.UUID) / connections.DIRECTORY / "broken.json").write_text("{")
        self.assertEqual((BEGUN,), connections.of(records.UUID))
