# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable, Iterator

import testtools

from containerhost.devices.findings import Finding
from containerhost.operator import doctor
from tests.unit.containerhost.hosts import Broken


class DoctorCase(testtools.TestCase):
    """A host whose files a test may change, and what a check finds there."""

    host_name = "mixed"

    def setUp(self) -> None:
        super().setUp()
        self.tree = self.useFixture(Broken(self.host_name))

    def findings(self, check: Callable[[doctor.HostData], Iterator[Finding]]) -> list[Finding]:
        found = list(check(doctor.collect(self.tree.host, self.tree.root / "records")))
        for finding in found:
            self.assertTrue(finding.problem and finding.remedy, finding)
        return found

    def problems(self, check: Callable[[doctor.HostData], Iterator[Finding]]) -> dict[str, str]:
        return {finding.subject: finding.problem for finding in self.findings(check)}

    def subjects(self, check: Callable[[doctor.HostData], Iterator[Finding]]) -> list[str]:
        return [finding.subject for finding in self.findings(check)]
