# SPDX-License-Identifier: Apache-2.0
"""LXD, and Incus where $LXD_PROGRAM is incusd."""

from pathlib import Path
from unittest import mock

from containerhost import errors
from containerhost.allocation.refusals import Request
from containerhost.devices.model import Device
from tests.conformance.engine import suite
from tests.functional.containerhost.base import LxdTestCase


class LxdTest(suite.EngineConformance, LxdTestCase):
    last_words = b"The system is going down"

    def someones(self, gpu: Device) -> None:
        self.engine.create(self.spec("someone"))
        self.engine.client.patch_instance("someone", {"devices": {"g": {"type": "gpu", "gputype": "physical"}}})

    def test_refused_detachment_leaves_the_nodes_usable(self) -> None:
        first, second = self.acquired("c1", tuple(Request(gpu.id) for gpu in self.gpus[:2]))
        self.engine.detach("c1", first, [second])
        nodes = {node.path for node in second.nodes}  # those that GPUs share are still the first one's files
        refused = mock.patch.object(self.engine.client, "replace_instance", side_effect=errors.EngineError("refused"))
        with refused:
            self.assertRaises(errors.EngineError, self.engine.detach, "c1", second)
        self.assertEqual(nodes, {path for path in nodes if self.opens(path)})
        with refused as replace:
            replace.side_effect = errors.EngineTimeout("it may go on by itself")
            self.assertRaises(errors.EngineTimeout, self.engine.detach, "c1", second)
        self.assertEqual(set(), {path for path in nodes if self.opens(path)})
        self.engine.attach("c1", second)
        self.assertEqual(nodes, {path for path in nodes if self.opens(path)})

    def test_list_of_metrics_needs_no_state_of_any_container(self) -> None:
        self.running()
        pid = self.engine.pid("c1")
        with mock.patch.object(self.engine.client, "state", side_effect=AssertionError("LXD was asked")):
            self.assertEqual([pid], [metrics.pid for state, metrics in self.engine.measured() if state.name == "c1"])

    def test_server_is_the_daemon_that_was_started(self) -> None:
        self.assertEqual(Path(self.daemon.program).name.removesuffix("d"), self.engine.server().name.removesuffix("d"))
