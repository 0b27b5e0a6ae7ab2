# SPDX-License-Identifier: Apache-2.0
import pathlib

import fixtures
import testtools

from tests.fakehost import cgroups, registry
from tests.fakehost.cgroups import Group
from tests.fakehost.registry import RegistryError


class TestNames(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.directory = pathlib.Path(self.useFixture(fixtures.TempDir()).path, "fakehost")
        self.useFixture(fixtures.MonkeyPatch("tests.fakehost.registry.DIRECTORY", self.directory))

    def test_a_name_is_taken_until_it_is_released(self):
        registration = registry.register("lab")
        error = self.assertRaises(RegistryError, registry.register, "lab")
        self.assertIn("fakehost --stop lab", str(error))
        registration.release()
        self.assertFalse(self.directory.exists())
        registry.register("lab").release()

    def test_what_a_killed_host_left_counts_for_nothing(self):
        self.directory.mkdir()
        (self.directory / "lab").write_text('{"outer": 1, "init": 1}')
        error = self.assertRaises(RegistryError, registry.stop, "lab")
        self.assertIn("no emulated host named lab runs; running: none", str(error))
        registry.register("lab").release()

    def test_a_host_that_is_starting_cannot_be_joined_yet(self):
        registration = registry.register("lab")
        self.addCleanup(registration.release)
        error = self.assertRaises(RegistryError, registry.join, "lab", ["true"])
        self.assertIn("still starting", str(error))

    def test_other_hosts_keep_their_directory(self):
        first, second = registry.register("first"), registry.register("second")
        first.release()
        error = self.assertRaises(RegistryError, registry.stop, "first")
        self.assertIn("running: second", str(error))
        second.release()

    def test_names_cannot_leave_the_directory(self):
        for name in ("", "..", "../x", "a/b", "-x", "a b", "x" * 64):
            error = self.assertRaises(RegistryError, registry.register, name)
            self.assertIn("is not a name", str(error))
        self.assertFalse(self.directory.exists())


class TestThaw(testtools.TestCase):
    def test_frozen_groups_of_a_host_are_thawed_at_every_depth(self):
        directory = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        states = [directory / below / "freezer.state" for below in ("a", "a/b", "c")]
        for state in states:
            state.parent.mkdir(exist_ok=True)
            state.write_text("FROZEN")
        cgroups.thaw([Group("/sys/fs/cgroup/freezer", str(directory / "a"), False), Group("", "/nowhere", False)])
        self.assertEqual(["THAWED", "THAWED", "FROZEN"], [state.read_text() for state in states])
