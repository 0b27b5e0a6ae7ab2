# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from unittest import mock

import fixtures
import testtools

from containerhost.engines.docker import recordfiles
from containerhost.engines.docker.config import LABEL
from containerhost.engines.docker.engine import DockerEngine
from containerhost.engines.docker.record import Netdev, Node, Record, Records
from containerhost.engines.spec import IpConfig
from containerhost.errors import EngineConflict, EngineError, EngineNotFound
from tests.unit.containerhost.linux.test_records import lease, of_first_release, of_later_release

ID, OTHER_ID = "ab" * 32, "cd" * 32
FULL = Record(frozenset({"0000:3b:00.0"}), frozenset({Node("/dev/nvidia0", 195, 0)}),
              frozenset({Netdev("ibs1v0", "ib0")}))
SETUP = IpConfig(("10.0.0.5/24",), ("10.0.0.1",), 7)


class RecordsCase(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir()).path) / "records"
        self.records = Records(self.directory)


class RecordsTest(RecordsCase):
    def test_written_and_read(self):
        for record in (FULL, Record(), Record(netdevs=frozenset({Netdev("a", "b", SETUP)}))):
            self.records.write(ID, record)
            self.assertEqual(record.fields(), self.records.read(ID).fields())
        self.assertEqual([f"{ID}.json"], [path.name for path in self.directory.iterdir()])
        self.records.remove(ID)
        self.records.remove(ID)
        self.assertRaises(EngineNotFound, self.records.read, ID)

    def test_records_of_other_releases_are_used_and_their_fields_kept(self):
        self.records.write(ID, FULL)
        file = self.directory / f"{ID}.json"
        for release in (of_first_release, of_later_release):
            release(file)
            self.assertEqual(FULL, self.records.read(ID))
            self.assertEqual([("/dev/nvidia0", 195, 0)], recordfiles.nodes(str(self.directory), ID))
        self.records.write(ID, Record(container="c1"))
        self.assertEqual((9, [1]), lease(file))
        self.assertEqual(Record(container="c1"), self.records.read(ID))

    def test_record_outlives_the_container_that_docker_has_not(self):
        client = mock.Mock(container=mock.Mock(side_effect=EngineNotFound("gone")))
        engine = DockerEngine(client, mock.Mock(), self.directory)
        self.assertFalse(engine.has_record("c1"))
        self.records.write(ID, Record(container="c1"))
        self.assertEqual((True, False), (engine.has_record("c1"), engine.has_record("c2")))
        self.records.write(ID, Record())  # of an earlier version: whose it was is not known
        self.assertTrue(engine.has_record("c2"))
        client.container.side_effect = None
        self.assertFalse(engine.has_record("c2"))
        (self.directory / f"{ID}.json").write_text("{")
        self.assertRaises(EngineError, engine.has_record, "c1")

    def test_unreadable_record_hides_no_container(self):
        labels = {LABEL: '{"one.vm": "7"}'}
        summaries = [{"Id": identity, "Names": [f"/c{number}"], "State": "exited", "Labels": labels}
                     for number, identity in enumerate((ID, OTHER_ID))]
        engine = DockerEngine(mock.Mock(containers=mock.Mock(return_value=summaries)), mock.Mock(), self.directory)
        for identity in (ID, OTHER_ID):
            self.records.write(identity, FULL)
        (self.directory / f"{ID}.json").write_text("{")
        unreadable, other = engine.containers()
        self.assertEqual(("c0", {"one.vm": "7"}, {}), (unreadable.name, unreadable.labels, unreadable.interfaces))
        self.assertEqual(("c1", {"ib0": "ibs1v0"}), (other.name, other.interfaces))
        self.assertEqual(["c0", "c1"], [state.name for state, _ in engine.measured()])
        self.assertRaises(EngineError, engine.held, [])  # which devices it has is unknown

    def test_one_that_another_caller_removes_has_stopped(self):
        """Docker kills it, removes it, and only then has it not."""
        state = {"Status": "running", "Running": True, "Pid": 0}

        def signal(*_: object) -> None:
            state.update(Status="removing", Running=False)
            raise EngineConflict("it is not running")

        client = mock.Mock(container=lambda _: {"Id": ID, "Name": "/c1", "Config": {}, "State": state}, signal=signal,
                           settings=mock.Mock(operation_timeout=1))
        engine = DockerEngine(client, mock.Mock(), self.directory)
        engine.delete("c1")
        client.remove.assert_called_once_with(ID)

    def test_of_two_setups_of_one_interface_the_newer_counts(self):
        old, new = (Record(netdevs=frozenset({Netdev("a", "b", setup)})) for setup in (None, SETUP))
        self.assertEqual([SETUP], [netdev.setup for netdev in (old | new).netdevs])
        self.assertEqual([None], [netdev.setup for netdev in (new | old).netdevs])
        self.assertEqual(Record(), new - old)

    def test_nothing_but_an_id_names_a_file(self):
        for name in ("c1", "../" + ID, ID.upper(), ID + "\n", ""):
            self.assertRaises(EngineNotFound, self.records.read, name)
            self.assertRaises(EngineNotFound, self.records.write, name, FULL)

    def test_what_cannot_be_trusted_says_so(self):
        self.records.write(ID, FULL)
        for text in ("", "{", "[]", "{}", '{"devices": [], "nodes": [], "netdevs": [], "labels": 5}',
                     '{"devices": [], "nodes": [{"path": "/dev/x"}], "netdevs": []}', "[" * 100_000,
                     '{"devices": [], "nodes": [], "netdevs": [], "cores": [Infinity]}',
                     '{"devices": [], "nodes": [{"path": "/dev/x", "major": "a", "minor": 1}], "netdevs": []}'):
            (self.directory / f"{ID}.json").write_text(text)
            error = self.assertRaises(EngineError, self.records.read, ID)
            self.assertIn("cannot be trusted", str(error))

    def test_a_directory_that_cannot_be_written(self):
        self.directory.write_text("in the way")
        self.assertRaises(EngineError, self.records.write, ID, FULL)

    def test_sums_and_differences(self):
        other = Record(frozenset({"x"}), FULL.nodes | {Node("/dev/nvidia1", 195, 1)})
        self.assertEqual(FULL, FULL | Record())
        self.assertEqual(Record(frozenset({"x"}), frozenset({Node("/dev/nvidia1", 195, 1)})), other - FULL)
        self.assertEqual(FULL | other, other | FULL)
