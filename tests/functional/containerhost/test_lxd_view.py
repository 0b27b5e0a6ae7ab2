# SPDX-License-Identifier: Apache-2.0
"""What a container on LXD sees of its CPUs and memory while they change."""

from containerhost.engines.lxd.live import Live
from containerhost.privileged import Privileged
from containerhost.spec import ContainerSpec
from tests.functional import viewcontract
from tests.functional.containerhost.base import LxdTestCase


class ViewTest(viewcontract.ViewContract, LxdTestCase):
    def setUp(self) -> None:
        self.useFixture(viewcontract.Lxcfs())
        super().setUp()
        self.live = Live(self.engine, Privileged())

    def resize(self, spec: ContainerSpec) -> None:
        self.live.adapt(self.live.look(spec.name), spec)
