# SPDX-License-Identifier: Apache-2.0
"""The upgrade check: what it finds, and that it changes nothing."""

import json
from pathlib import Path

import fixtures
import nova.conf
import testtools
from oslo_config import fixture as config_fixture
from oslo_upgradecheck.upgradecheck import Code

from containerhost import errors
from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.inventory.scan import scan
from nova_lxd_ext import conf, status
from nova_lxd_ext.host import startup
from tests.unit.containerhost.hosts import shared
from tests.unit.nova.fakes import FakeEngine

GPU, CONSUMER = "0000:3b:00.0", Consumer("nova", "lxd", "instance-1", "uuid")


class ChecksTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        conf.register()
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)
        self.options = self.useFixture(config_fixture.Config(nova.conf.CONF))
        self.options.config(instances_path=str(self.directory / "instances"))
        self.options.config(ready_timeout=0, owners_dir=str(self.directory / "owners"), group="lxd")
        self.engine = FakeEngine()
        self.store = AllocationStore(self.directory / "owners")
        self.useFixture(fixtures.MonkeyPatch("nova_lxd_ext.status.missing", lambda tools: ()))

    def found(self) -> dict[str, tuple[Code, str | None]]:
        checks = status.Checks(nova.conf.CONF, self.engine)
        results = {name: check(checks) for name, check in checks._upgrade_checks}
        return {name: (result.code, result.details) for name, result in results.items() if result.code != Code.SUCCESS}

    def claim(self) -> None:
        inventory = scan(shared("small"))
        self.store.claim([inventory.get(GPU)], CONSUMER, inventory.related)

    def test_well_host_is_not_changed(self) -> None:
        self.assertEqual({}, self.found())
        self.assertEqual([], list(self.directory.iterdir()))

    def test_daemon_that_does_not_answer(self) -> None:
        self.engine.fail = {"server": errors.EngineUnavailable("no socket")}
        self.assertEqual({"LXD": (Code.FAILURE, "no socket")}, self.found())

    def test_missing_pool(self) -> None:
        self.engine.fail = {"pool": errors.EngineNotFound("storage pool 'default' is absent")}
        self.assertEqual({"LXD": (Code.FAILURE, "storage pool 'default' is absent")}, self.found())

    def test_daemon_of_other_servers(self) -> None:
        startup.check(nova.conf.CONF, self.engine, in_use=True)
        self.claim()
        self.store.attach([GPU], CONSUMER)
        self.assertEqual({}, self.found())
        self.engine.certificate = "another"
        code, details = self.found()["LXD"]
        self.assertEqual(Code.FAILURE, code)
        self.assertIn("another", str(details))

    def test_records_in_progress_blocked_and_of_a_later_release(self) -> None:
        self.claim()
        self.assertIn("is in progress", str(self.found()["Allocation records"][1]))
        self.store.block(GPU, "not clean")
        self.assertEqual((Code.WARNING, f"{GPU} is blocked: not clean"), self.found()["Allocation records"])
        (file,) = (self.directory / "owners").glob("*.json")
        file.write_text(json.dumps(json.loads(file.read_text()) | {"version": 99}))
        self.assertIn("version 99", str(self.found()["Allocation records"][1]))
        file.write_text("?")
        self.assertEqual(Code.FAILURE, self.found()["Allocation records"][0])

    def test_names_that_the_engine_refuses(self) -> None:
        self.options.config(instance_name_template="instance_%08x")
        self.assertEqual({"Options"}, self.found().keys())

    def test_programs_that_are_missing(self) -> None:
        self.useFixture(fixtures.MonkeyPatch("nova_lxd_ext.status.missing", lambda tools: ("sqfs2tar is missing",)))
        self.assertEqual((Code.WARNING, "Not every image can be booted: sqfs2tar is missing"), self.found()["Programs"])
