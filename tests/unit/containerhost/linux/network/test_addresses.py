# SPDX-License-Identifier: Apache-2.0
import testtools

from containerhost.engines.spec import IpConfig
from containerhost.errors import HostActionFailed
from containerhost.linux.network import addresses


class CheckedTest(testtools.TestCase):
    """Test refusals; the functional tests try what the kernel does with addresses."""

    def test_what_is_no_address_never_reaches_the_kernel(self) -> None:
        for setup in (IpConfig(("10.0.0.1/33",)), IpConfig(("$(x)/24",)), IpConfig((), ("10.0.0",)),
                      IpConfig((), ("10.0.0.1/24",))):
            self.assertRaises(HostActionFailed, addresses.apply, "/nonexistent/net", "eth0", setup)

    def test_a_namespace_that_is_not_there_is_told(self) -> None:
        setup = IpConfig(("10.0.0.1/24", "fd00::1/64"), ("10.0.0.254",))
        error = self.assertRaises(HostActionFailed, addresses.apply, "/nonexistent/net", "eth0", setup)
        self.assertIn("/nonexistent/net", str(error))
