# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import fixtures
import nova.conf
import testtools
from nova import exception, objects
from nova.virt import node
from oslo_config import cfg
from oslo_config import fixture as config_fixture

from containerhost import errors
from containerhost.engines.contract import PoolUsage
from containerhost.linux import poll
from containerhost.linux.lock import FileLock
from nova_lxd_ext import conf
from nova_lxd_ext.host import startup
from tests.unit.containerhost.linux.test_records import of_first_release, of_later_release
from tests.unit.nova.fakes import FakeEngine

NODE = "8a5a4d6c-0d4c-4f0e-9f7e-1f5f3f1c2b3a"


class NamesTest(testtools.TestCase):
    def test_templates_whose_names_the_engine_takes(self) -> None:
        for template in ("instance-%08x", "i%d", "vm-%(uuid)s", "a-%(hostname)s-%(id)d"):
            with self.subTest(template):
                startup.require_usable_names(template)

    def test_templates_whose_names_it_refuses(self) -> None:
        for template in ("%08x", "%(uuid)s", "instance_%08x", "x" * 60 + "%08x", "vm %d", "-%d"):
            with self.subTest(template):
                error = self.assertRaises(exception.InvalidConfiguration, startup.require_usable_names, template)
                self.assertIn(template, str(error))


class AloneTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        conf.register()
        self.options = self.useFixture(config_fixture.Config(nova.conf.CONF))
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)
        self.options.config(instances_path=str(self.directory), host="n1")
        self.useFixture(fixtures.MockPatchObject(startup, "END_TIMEOUT", 0.05))
        self.useFixture(fixtures.MockPatchObject(startup, "_alone", {}))
        self.addCleanup(lambda: [held.close() for held in startup._alone.values()])

    def test_second_process_of_one_name_does_not_start(self) -> None:
        with FileLock(self.directory / "lxd-n1.lock", 0).held():
            error = self.assertRaises(exception.InvalidConfiguration, startup.require_alone, nova.conf.CONF)
        self.assertIn("another nova-compute serves as host 'n1'", str(error))
        startup.require_alone(nova.conf.CONF)
        startup.require_alone(nova.conf.CONF)  # as after a SIGHUP
        self.assertRaises(TimeoutError, FileLock(self.directory / "lxd-n1.lock", 0).held().__enter__)

    def test_another_name_starts_beside_it(self) -> None:
        with FileLock(self.directory / "lxd-n2.lock", 0).held():
            startup.require_alone(nova.conf.CONF)


class SameNameTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.useFixture(fixtures.MockPatchObject(node, "read_local_node_uuid", lambda: NODE))
        self.recorded = self.useFixture(fixtures.MockPatchObject(objects.ComputeNode, "get_by_uuid")).mock
        self.recorded.return_value = objects.ComputeNode(host="n1")

    def test_renamed_host_does_not_start(self) -> None:
        error = self.assertRaises(exception.InvalidConfiguration, startup.require_same_name, "n2")
        self.assertIn("[DEFAULT]host is 'n2': set it to 'n1' again", str(error))

    def test_same_host_and_one_that_nova_does_not_know_start(self) -> None:
        startup.require_same_name("n1")
        self.recorded.side_effect = exception.ComputeHostNotFound(host=NODE)
        startup.require_same_name("n2")


class CheckTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        conf.register()
        self.options = self.useFixture(config_fixture.Config(nova.conf.CONF))
        self.options.config(instances_path=self.useFixture(fixtures.TempDir()).path)
        self.options.config(ready_timeout=0, group="lxd")
        self.engine = FakeEngine()

    def check(self, in_use: bool = False) -> None:
        startup.check(nova.conf.CONF, self.engine, in_use)

    def test_what_is_right_passes(self) -> None:
        self.check()

    def test_project_that_forbids_what_servers_need_is_refused(self) -> None:
        self.engine.forbidden = lambda: "project hpc is restricted"
        error = self.assertRaises(exception.InvalidConfiguration, self.check)
        self.assertIn("[lxd]project: project hpc is restricted", str(error))

    def test_programs_that_unpack_images_are_named_with_their_package(self) -> None:
        log = self.useFixture(fixtures.FakeLogger("nova_lxd_ext.host.startup"))
        self.useFixture(fixtures.EnvironmentVariable("PATH", self.useFixture(fixtures.TempDir()).path))
        self.check()
        self.assertIn("no program sqfs2tar; install package squashfs-tools-ng", log.output)

    def test_a_pool_that_may_hold_no_disk_to_its_size_is_told(self) -> None:
        log = self.useFixture(fixtures.FakeLogger("nova_lxd_ext.host.startup"))
        self.check()
        self.assertIn("project quotas", log.output)  # the fake engine's pool is a directory
        self.engine.pool = lambda name: PoolUsage(name, "btrfs", 10, 1)
        log = self.useFixture(fixtures.FakeLogger("nova_lxd_ext.host.startup"))
        self.check()
        self.assertNotIn("project quotas", log.output)

    def test_another_project_or_daemon_is_refused_where_servers_are(self) -> None:
        self.check(in_use=True)
        self.check(in_use=True)
        self.options.config(project="other", group="lxd")
        error = self.assertRaises(exception.InvalidConfiguration, self.check, in_use=True)
        self.assertIn("other", str(error))
        self.assertIn("remove", str(error))
        self.options.config(project="default", group="lxd")
        self.check(in_use=True)
        self.engine.certificate = "another"
        self.assertRaises(exception.InvalidConfiguration, self.check, in_use=True)

    def test_the_record_of_another_release_names_the_same_engine(self) -> None:
        self.check(in_use=True)
        (file,) = Path(nova.conf.CONF.instances_path).glob("*.engine.json")
        for release in (of_first_release, of_later_release):
            release(file)
            self.check(in_use=True)
            self.options.config(project="other", group="lxd")
            self.assertRaises(exception.InvalidConfiguration, self.check, in_use=True)
            self.options.config(project="default", group="lxd")

    def test_an_empty_host_takes_another_project(self) -> None:
        self.check()
        self.options.config(project="other", group="lxd")
        self.check()
        self.check(in_use=True)

    def test_a_missing_pool_is_named(self) -> None:
        self.options.config(storage_pool="fast", group="lxd")
        self.engine.fail = {"pool": errors.EngineNotFound("Storage pool not found")}
        error = self.assertRaises(exception.InvalidConfiguration, self.check)
        self.assertIn("fast", str(error))

    def test_a_daemon_that_does_not_come_is_not_waited_for_longer_than_said(self) -> None:
        self.engine.fail = {"server": errors.EngineUnavailable("no socket")}
        self.assertRaises(errors.EngineUnavailable, self.check)

    def test_a_daemon_that_comes_late_is_waited_for(self) -> None:
        self.options.config(ready_timeout=5, group="lxd")
        self.engine.fail = {"server": errors.EngineUnavailable("no socket")}
        tries = []

        def pause(_: float) -> None:
            tries.append(1)
            self.engine.fail = {}
        self.patch(poll.time, "sleep", pause)
        self.check()
        self.assertEqual([1], tries)


class OptionsTest(testtools.TestCase):
    def test_values_that_are_refused_when_read(self) -> None:
        for option, value in (("rdma_memlock", "some"), ("rdma_memlock", "-1"), ("rdma_guid_policy", "random"),
                              ("request_timeout", "0"), ("allow_privileged", "perhaps")):
            with self.subTest(option):
                self.assertRaises((ValueError, cfg.ConfigFileValueError), self.read, option, value)

    def read(self, option: str, value: str) -> object:
        options = cfg.ConfigOpts()
        conf.register(options)
        options([], default_config_files=[])
        options.set_override(option, value, group="lxd")
        return options.lxd[option]

    def test_the_sample_has_every_option_with_a_help_text(self) -> None:
        ((group, options),) = conf.list_opts()
        self.assertEqual("lxd", group.name)
        self.assertEqual([], [option.name for option in options if not option.help])
