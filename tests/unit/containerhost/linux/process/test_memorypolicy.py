# SPDX-License-Identifier: Apache-2.0
from unittest import mock

import fixtures
import testtools

from containerhost.errors import HostActionFailed
from containerhost.linux.process import memorypolicy


class BindTest(testtools.TestCase):
    def bind(self, machine: str) -> mock.Mock:
        self.useFixture(fixtures.MockPatch("platform.machine", return_value=machine))
        library = mock.Mock(syscall=mock.Mock(return_value=0))
        self.useFixture(fixtures.MockPatchObject(memorypolicy, "_libc", library))
        memorypolicy.bind([1])
        return library.syscall

    def test_call_has_another_number_on_each_architecture(self) -> None:
        numbers = {machine: self.bind(machine).call_args.args[0] for machine in ("x86_64", "ppc64le", "s390x")}
        self.assertEqual({"x86_64": 238, "ppc64le": 261, "s390x": 270}, numbers)

    def test_unknown_architecture_is_refused(self) -> None:
        self.assertIn("mips64", str(self.assertRaises(HostActionFailed, self.bind, "mips64")))
