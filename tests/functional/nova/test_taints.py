# SPDX-License-Identifier: Apache-2.0
"""Test GPUs that the operator taints, drains and untaints, while nova places servers."""

from tests.functional.nova.test_pci_health import HealthServers  # isort: skip (decides how nova runs)

import json
import threading
from typing import ClassVar
from unittest import mock

from click.testing import CliRunner, Result
from nova.compute.manager import ComputeManager

from containerhost.inventory.taints import TaintFile
from containerhost.linux.sysfs import Host
from containerhost.operator.cli import main
from tests import levels
from tests.waiting import await_that

INTERVAL = 2  # s between nova-compute's updates of its resources
POLL = 0.5  # s


class ToldServers(HealthServers):
    pci_in_placement = True

    def faults(self, server: dict) -> list[str]:
        """Return the faults that the container was notified of; empty before the first notification."""
        told = self.inside(server, "cat", "/run/containerhost/faults.json")
        return list(json.loads(told.output)["faults"]) if told.status == 0 else []


class UnattendedTest(ToldServers):
    """Nova-compute looks by itself, here every few seconds instead of once a minute."""

    options: ClassVar = {(None, "periodic_enable"): True, (None, "periodic_fuzzy_delay"): 0}

    def setUp(self) -> None:
        spacing = mock.patch.dict(ComputeManager._periodic_spacing, update_available_resource=INTERVAL)
        spacing.start()
        self.addCleanup(spacing.stop)
        super().setUp()

    def test_holder_is_told_and_sick_devices_return_when_they_are_well(self) -> None:
        server = self.with_gpu()
        (held,) = self.held()
        (free,) = set(self.gpus) - {held}
        for gpu in self.gpus:
            self.control.set_fallen(gpu)
        await_that(lambda: self.reserved_functions() == {free: "CUSTOM_DEVICE_SICK"}, "the free one is reserved",
                   pause=POLL)
        await_that(lambda: [fault.partition(": ")[0] for fault in self.faults(server)] == [held], "its holder is told",
                   pause=POLL)
        for gpu in self.gpus:
            self.control.set_fallen(gpu, False)
        # Placement has it neither as sick nor at all between two updates.
        await_that(lambda: self.inventories().get(free, {}).get("reserved") == 0, "it is free again", pause=POLL)
        await_that(lambda: self.faults(server) == [], "its holder is told that it is over", pause=POLL)
        second = self.with_gpu()
        self.assertEqual({held: server["id"], free: second["id"]}, self.held())
        for one in (server, second):
            self._delete_server(one)
        self.assert_nothing_left()


@levels.exhaustive("UnattendedTest tells a holder in the gate",
                   tests=("test_holder_is_told_keeps_it_and_drain_waits_for_its_end",))
class TaintsTest(ToldServers):
    def setUp(self) -> None:
        super().setUp()
        for gpu in self.gpus:
            self.addCleanup(TaintFile(Host()).untaint, gpu)

    def command(self, *arguments: str, status: int = 0) -> Result:
        done = CliRunner().invoke(main, arguments)
        self.assertEqual(status, done.exit_code, done.output)
        return done

    def owners(self) -> tuple[str, str]:
        return "--owners", str(self.state / "owners")

    def test_tainted_gpu_is_placed_for_nobody_until_it_is_untainted(self) -> None:
        tainted, well = self.gpus
        self.known()
        self.command("taint", tainted, "--reason", "fan is loud")
        self.assertEqual({well}, self.known())
        self.assertEqual({tainted: "CUSTOM_DEVICE_TAINTED"}, self.reserved_functions())
        first, second = self.with_gpu(), self.with_gpu(expected="ERROR")
        self.assertEqual([well], list(self.held()))
        self.assert_no_host_tried(second)
        self._delete_server(second)
        self.command("untaint", tainted)
        self.assertEqual({tainted, well}, self.known())
        self.assertEqual({}, self.reserved_functions())
        third = self.with_gpu()
        self.assertEqual({tainted: third["id"], well: first["id"]}, self.held())
        for server in (first, third):
            self._delete_server(server)
        self.assert_nothing_left()

    def test_holder_is_told_keeps_it_and_drain_waits_for_its_end(self) -> None:
        server = self.with_gpu()
        (gpu,) = self.held()
        self.known()
        told = self.command("drain", gpu, "--reason", "fan is loud", "--timeout", "1", *self.owners(), status=1)
        self.assertIn(server["id"], told.output)
        self.assertIn(gpu, self.known())
        self.assertEqual([f"{gpu}: tainted by the operator: fan is loud"], self.faults(server))
        self._reboot_server(server, hard=True)
        self.assertEqual({gpu: server["id"]}, self.held())
        drained: list[Result] = []
        waiting = threading.Thread(target=lambda: drained.append(self.command(
            "drain", gpu, "--reason", "fan is loud", "--timeout", "120", *self.owners())))
        waiting.start()
        self._delete_server(server)
        waiting.join()
        self.assertIn("is drained", drained[0].output)
        self.assertNotIn(gpu, self.known())
        self.command("untaint", gpu)
        self.assertIn(gpu, self.known())
        self.assert_nothing_left()
