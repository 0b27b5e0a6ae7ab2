# SPDX-License-Identifier: Apache-2.0
"""The driver against nova's own description of a driver."""

import inspect
from unittest import mock

import testtools
from nova import objects
from nova.virt import driver

from nova_lxd_ext.driver import LXDDriver
from tests.unit.nova import records

NEWEST = hasattr(driver.ComputeDriver, "is_share_mounted")  # nova 34

# Nova's base class raises NotImplementedError for each, or has a slower implementation.
REQUIRED = (
    "init_host", "spawn", "destroy", "cleanup", "reboot", "power_on", "power_off", "pause", "unpause", "suspend",
    "resume", "get_info", "list_instances", "list_instance_uuids", "get_console_output", "get_diagnostics",
    "get_instance_diagnostics", "get_available_resource", "get_available_nodes", "update_provider_tree",
    "get_host_uptime", "get_host_ip_addr", "get_host_cpu_stats", "resume_state_on_host_boot")


class ContractTest(testtools.TestCase):
    def test_every_method_takes_what_nova_passes(self) -> None:
        for name, own in vars(LXDDriver).items():
            base = getattr(driver.ComputeDriver, name, None)
            if name.startswith("_") or not callable(base):
                continue
            known, taken = self.parameters(base), self.parameters(own)
            with self.subTest(name):
                # An earlier release of nova passes fewer arguments: the others have defaults.
                self.assertEqual(known, taken[:len(known)])
                self.assertEqual([], [parameter for parameter, default in taken[len(known):]
                                      if NEWEST or default is inspect.Parameter.empty])

    @staticmethod
    def parameters(method: object) -> list[tuple[str, object]]:
        return [(parameter.name, parameter.default) for parameter in inspect.signature(method).parameters.values()]

    def test_has_what_the_base_does_not(self) -> None:
        self.assertEqual([], [name for name in REQUIRED if name not in vars(LXDDriver)])

    def test_claims_no_capability_nova_does_not_know(self) -> None:
        self.assertEqual(driver.ComputeDriver.capabilities.keys(), LXDDriver.capabilities.keys())


class StartTest(testtools.TestCase):
    def test_server_whose_live_migration_is_to_be_ended_is_not_resumed(self) -> None:
        """Nova 33 clears its task state, and with resume_guests_state_on_host_boot has it started beside the other."""
        with mock.patch("nova_lxd_ext.backend.build") as build:
            started = LXDDriver(None)
        backend, server = build.return_value, records.instance()
        for leaving in (frozenset({server.uuid}), frozenset()):
            backend.live_recovery.recover.return_value = leaving
            with self.subTest(leaving), mock.patch("nova_lxd_ext.host.orphans.report"):
                started.process_instances_at_startup(None, objects.InstanceList(objects=[server]))
                started.resume_state_on_host_boot(None, server, None, None)
                self.assertEqual(not leaving, backend.power.on.called)


class SpawnTest(testtools.TestCase):
    def test_copy_of_an_ended_move_is_removed_before_the_server_is_made(self) -> None:
        with mock.patch("nova_lxd_ext.backend.build") as build:
            LXDDriver(None).spawn(None, records.instance(), None, None, None, None)
        self.assertEqual(["incoming.remove_ended", "lifecycle.spawn"], [
            name for name, *_ in build.return_value.mock_calls if name.startswith(("incoming", "lifecycle"))])
