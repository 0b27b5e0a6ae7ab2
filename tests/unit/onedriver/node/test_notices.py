# SPDX-License-Identifier: Apache-2.0
"""Notices to guests, over an engine that fails."""

import testtools

from containerhost.engines.spec import ContainerSpec, Cpu, Memory, RootDisk
from containerhost.errors import EngineUnavailable
from onedriver.node.notices import ResourceNotices
from tests.unit.nova.fakes import FakeEngine

SPEC = ContainerSpec("one-1", "image", Cpu(1), Memory(1 << 30), RootDisk("default", None))


class ResizingTest(testtools.TestCase):
    def test_change_that_was_made_succeeds_though_the_guest_is_not_told(self) -> None:
        engine = FakeEngine()
        engine.create(SPEC)
        with ResourceNotices(engine, 0).resizing(SPEC):  # type: ignore[arg-type]
            engine.fail["container"] = EngineUnavailable("the daemon is away")
        self.assertEqual("container", engine.asked[-1])
