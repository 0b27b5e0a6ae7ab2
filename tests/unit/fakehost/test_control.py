# SPDX-License-Identifier: Apache-2.0
import errno
import os
import tempfile

import fixtures
import testtools

from tests.fakehost import control, controlserver
from tests.fakehost.control import FakeHostControl
from tests.fakehost.machine import Machine


class TestControl(testtools.TestCase):
    def client(self, **calls) -> FakeHostControl:
        directory = self.useFixture(fixtures.TempDir()).path
        controlserver.serve(f"{directory}/control", calls)
        return FakeHostControl(f"{directory}/control")

    def test_arguments_and_results_pass(self):
        seen = []
        client = self.client(set_fallen=lambda **arguments: seen.append(arguments), resets=lambda: ["a", "b"])
        client.set_fallen("0000:3b:00.0")
        self.assertEqual([{"address": "0000:3b:00.0", "fallen": True}], seen)
        self.assertEqual(["a", "b"], client.resets())

    def test_refusals_keep_their_number_and_words(self):
        def refuse(address):
            raise OSError(errno.EBUSY, f"{address} is busy")

        error = self.assertRaises(OSError, self.client(remove=refuse).remove, "x")
        self.assertEqual((errno.EBUSY, "x is busy"), (error.errno, error.strerror))

    def test_a_vf_that_is_not_there(self):
        client = self.client(vf_settings=lambda interface: [{"mac": "m"}])
        self.assertEqual({"mac": "m"}, client.vf_state("ib0", 0))
        error = self.assertRaises(OSError, client.vf_state, "ib0", 1)
        self.assertIn("ib0 has 1 VFs", str(error))

    def test_only_root_may_call(self):
        directory = tempfile.mkdtemp()
        self.addCleanup(os.rmdir, directory)
        self.addCleanup(os.unlink, f"{directory}/control")
        controlserver.serve(f"{directory}/control", {})
        self.assertEqual(0o600, os.stat(f"{directory}/control").st_mode & 0o777)

    def test_the_machine_answers_every_call(self):
        self.assertEqual([], [name for name in controlserver.CALLS if not callable(getattr(Machine, name, None))])

    def test_outside_of_an_emulated_host(self):
        self.useFixture(fixtures.EnvironmentVariable(control.ENVIRONMENT, None))
        error = self.assertRaises(RuntimeError, FakeHostControl.from_environment)
        self.assertIn("tools/fakehost", str(error))
