# SPDX-License-Identifier: Apache-2.0
"""Decide whether a resize is live, and keep the old size on an error; LXD is a fake."""

import dataclasses
import json
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import nova.conf
import testtools
from nova import exception, objects
from nova.compute import task_states, vm_states
from nova.network import model
from oslo_utils import units

from containerhost import errors
from containerhost.engines.contract import Status
from containerhost.engines.resizelock import resizing
from containerhost.engines.spec import Cpu
from hpcplan.affinity import Affinity
from nova_lxd_ext.instance.requested import NOTHING, RequestedResources
from nova_lxd_ext.server import liveresize
from tests.unit.nova import fakes, ports, records
from tests.unit.nova.fakes import GPU_0, GPU_1
from tests.unit.nova.movescase import MOVE, MovesCase

VOLUME = {"block_device_mapping": [{"connection_info": {
    "driver_volume_type": "local", "data": {"device_path": "/dev/null"},
    "serial": "4d1f3b1a-0b0e-4a0e-9d0c-1c9f5c3f6f01"}, "boot_index": None,
    "mount_device": "/dev/vdb", "attachment_id": None}]}


class LiveCase(MovesCase):
    def setUp(self) -> None:
        super().setUp()
        self.move = objects.Migration(id=MOVE, uuid=records.UUID, source_compute="one", dest_compute="one")
        self.server.vm_state = vm_states.ACTIVE
        self.one.engine.asked.clear()

    def memory(self) -> int:
        return self.one.engine.specs[self.server.name].memory.size // units.Mi

    def assert_never_stopped(self) -> None:
        self.assertEqual(set(), {"kill", "stop", "start", "freeze"}.intersection(self.one.engine.asked))
        self.assertEqual(Status.RUNNING, self.one.engine.statuses[self.server.name])

    def resize_to(self, flavor: objects.Flavor, requested: RequestedResources = NOTHING) -> None:
        self.server.new_flavor = flavor
        self.here.migrate(None, self.server, flavor, requested, 0, 0)

    @staticmethod
    def fail_once(target: Any, method: str, error: BaseException, times: int = 1) -> None:
        """The next calls of a method raise, then it is as it was."""
        original, left = getattr(target, method), [error] * times

        def call(*arguments: Any) -> Any:
            if left:
                raise left.pop()
            return original(*arguments)
        setattr(target, method, call)

    def refusal(self, flavor: objects.Flavor, requested: RequestedResources = NOTHING) -> str:
        error = self.assertRaises(exception.InstanceFaultRollback, self.resize_to, flavor, requested)
        self.assert_as_it_was()
        self.assert_never_stopped()
        return str(error)


class LiveResizeTest(LiveCase):
    def test_confirmed(self) -> None:
        self.leave()
        self.assertEqual((1024, {GPU_1: self.server.name}), (self.memory(), self.one.held()))
        self.arrive(self.here)
        self.here.confirm(self.server, self.move)
        self.assertEqual((1024, {GPU_1: self.server.name}), (self.memory(), self.one.held()))
        self.assert_never_stopped()

    def stays(self, requested: RequestedResources = NOTHING) -> bool:
        """Do what nova does first when a resize is reverted: end the server, unless that stays."""
        self.server.old_flavor, self.server.task_state = records.flavor(), task_states.RESIZE_REVERTING
        if self.here.revert_in_place(None, self.server, requested):
            return True
        self.one.lifecycle.remove(self.server, requested, keep_disk=True)
        return False

    def test_reverted(self) -> None:
        self.leave()
        self.arrive(self.here)
        self.assertTrue(self.stays())
        self.assert_as_it_was()
        self.go_back()
        self.assert_as_it_was()
        self.assert_never_stopped()

    def test_elastic_service_waits_for_a_resize_and_its_revert(self) -> None:
        read, locked = self.one.live.read, []

        def reading(name: str) -> Any:
            try:
                with resizing(Path(nova.conf.CONF.lxd.owners_dir), name, 0):
                    locked.append(False)
            except errors.EngineBusy:
                locked.append(True)
            return read(name)

        self.one.live.read = reading
        self.leave()
        self.assertEqual({True}, set(locked))
        self.arrive(self.here)
        del locked[:]
        self.assertTrue(self.stays())
        self.assertEqual({True}, set(locked))

    def test_a_revert_that_cannot_be_live_stops_the_server(self) -> None:
        for name, cause, requested in (
                ("memory", lambda: setattr(self.one.live, "needed", 600 * units.Mi), NOTHING),
                ("volume", lambda: None, RequestedResources.of(block_device_info=VOLUME))):
            with self.subTest(name):
                self.leave()
                self.arrive(self.here)
                cause()
                self.assertFalse(self.stays(requested))
                self.one.live.needed = 0
                self.go_back()
                self.assert_as_it_was()
                self.server.old_flavor, self.server.task_state = None, None

    def test_a_revert_whose_live_part_fails_stops_the_server(self) -> None:
        self.leave()
        self.arrive(self.here)
        self.fail_once(self.one.live, "adapt", errors.EngineError("not today"))
        self.assertFalse(self.stays())
        self.go_back()
        self.assert_as_it_was()

    def test_any_other_end_is_one(self) -> None:
        self.assertFalse(self.here.revert_in_place(None, self.server, NOTHING))

    def test_an_error_leaves_the_old_size(self) -> None:
        for target, call in ((self.one.live, "adapt"), (self.one.engine, "verify")):
            with self.subTest(call):
                self.fail_once(target, call, errors.EngineError("not today"))
                self.assertIn("not today", self.refusal(self.large))

    def test_a_container_that_has_not_what_lxd_says_is_given_all_anew(self) -> None:
        self.fail_once(self.one.engine, "verify", errors.NotAsGranted("/dev/nvidia0 is missing"), times=2)
        self.assertIn("nvidia0", self.refusal(self.large))
        self.assertIn("replace_devices", self.one.engine.asked)

    def test_killed_in_the_middle(self) -> None:
        """Nova then calls for going back."""
        self.fail_once(self.one.engine, "verify", fakes.Killed())
        with mock.patch.object(self.one.resize, "_take_back"):
            self.assertRaises(fakes.Killed, self.leave)
        self.go_back()
        self.assert_as_it_was()
        self.assert_never_stopped()

    def test_killed_before_the_container_changed(self) -> None:
        with mock.patch.object(self.one.live, "adapt", side_effect=fakes.Killed()), \
                mock.patch.object(self.one.resize, "_take_back"):
            self.assertRaises(fakes.Killed, self.leave)
        self.assertEqual({GPU_0, GPU_1}, self.one.held().keys())
        self.go_back()
        self.assert_as_it_was()

    def test_memory_in_use_is_refused_whatever_the_flavor_says(self) -> None:
        self.one.live.needed = 300 * units.Mi
        self.assertIn("use 300 MiB of memory", self.refusal(records.flavor(memory_mb=256)))

    def free(self, size: int) -> None:
        self.one.live.needed -= size * units.Mi

    def test_a_guest_that_listens_is_asked_before(self) -> None:
        self.one.live.needed = 300 * units.Mi
        self.listen(lambda: self.free(100))
        self.resize_to(records.flavor(memory_mb=256))
        self.assertEqual(256, self.memory())
        self.assert_never_stopped()

    def test_what_was_announced_is_withdrawn(self) -> None:
        self.one.live.needed = 300 * units.Mi
        self.listen(lambda: self.free(1))
        self.assertIn("use 299 MiB", self.refusal(records.flavor(memory_mb=256)))
        first, last = (json.loads(content) for content in self.one.files.written)
        self.assertEqual((256 * units.Mi, 512 * units.Mi, None),
                         (first["announced"]["memory"], last["memory"], last["announced"]))

    def test_what_cannot_be_live_is_refused_on_demand(self) -> None:
        table: dict[str, tuple[dict[str, Any], RequestedResources, objects.Migration]] = {
            "network function": ({}, RequestedResources.of(model.NetworkInfo([ports.direct()])), self.move),
            "volumes": ({}, RequestedResources.of(block_device_info=VOLUME), self.move),
            "ephemeral": ({"ephemeral_gb": 1}, NOTHING, self.move),
            "another host, two": ({}, NOTHING, objects.Migration(
                id=MOVE, uuid=records.UUID, source_compute="one", dest_compute="two")),
        }
        for words, (changes, requested, move) in table.items():
            with self.subTest(words):
                self.move = move
                self.assertIn(words, self.refusal(records.flavor({"lxd:live_resize": "required"}, **changes),
                                                  requested))
        self.move = objects.Migration(id=MOVE, uuid=records.UUID, source_compute="one", dest_compute="one")
        self.one.live.stubborn = ("it must start anew",)
        self.assertIn("start anew", self.refusal(records.flavor({"lxd:live_resize": "required"}, memory_mb=1024)))

    def test_else_the_server_is_stopped(self) -> None:
        self.one.live.stubborn = ("it must start anew",)
        self.leave()
        self.assertEqual((Status.STOPPED, {}), (self.one.engine.statuses[self.server.name], self.one.held()))

    def test_a_server_that_is_off_takes_any_flavor(self) -> None:
        self.one.power.off(self.server)
        self.one.live.stubborn = ("it must start anew",)
        self.server.vm_state = vm_states.STOPPED
        self.resize_to(records.flavor({"lxd:live_resize": "required"}, memory_mb=1024))
        self.assertEqual(Status.STOPPED, self.one.engine.statuses[self.server.name])

    def test_a_word_that_is_none(self) -> None:
        self.assertIn("lxd:live_resize must be", self.refusal(records.flavor({"lxd:live_resize": "yes"})))


class FixedDifferencesTest(testtools.TestCase):
    def test_what_only_a_server_that_is_off_can_change(self) -> None:
        plain, limited = records.flavor(), records.flavor({"quota:vif_outbound_average": "10"})
        for other, word in ((records.flavor(ephemeral_gb=1), "ephemeral"), (limited, "limits of its ports")):
            for old, new in ((plain, other), (other, plain)):
                (said,) = liveresize.fixed_differences(old, new)
                self.assertIn(word, said)
        self.assertEqual((), liveresize.fixed_differences(plain, records.flavor(memory_mb=1024)))


class AffinityTest(LiveCase):
    """The host has no more cores than its servers have. Until nova confirms a resize, the server can have its cores
    back."""

    FLAVOR: ClassVar[dict[str, Any]] = {"vcpus": 1, "extra_specs": {"hpc:affinity": "cpumem"}}

    def setUp(self) -> None:
        super().setUp()
        self.server.new_flavor = self.large = records.flavor(memory_mb=1024, vcpus=1, flavorid="plain")
        for count in (7, 8):
            self.other(f"instance-0000000{count}", count)

    def other(self, name: str, count: int = 1) -> None:
        """Make a container with cores of its own."""
        wanted = dataclasses.replace(self.one.engine.specs[self.server.name], name=name, parts=(), labels={},
                                     cpu=Cpu(count, affinity=Affinity.CPUMEM, choice=frozenset(range(16))))
        with self.one.lifecycle.cores.bound(wanted) as bound:
            self.one.engine.create(bound)

    def cores(self) -> frozenset[int]:
        return self.one.engine.specs[self.server.name].cpu.own_cores

    def resize(self) -> None:
        self.leave()
        self.assertRaises(errors.UnsupportedOnHost, self.other, "instance-00000003")
        self.server.old_flavor = self.server.flavor
        self.arrive(self.here)
        self.assertEqual(frozenset(), self.cores())
        self.assertRaises(errors.UnsupportedOnHost, self.other, "instance-00000003")

    def test_cores_are_there_for_a_live_revert(self) -> None:
        before = self.cores()
        self.resize()
        self.server.task_state = task_states.RESIZE_REVERTING
        self.assertTrue(self.here.revert_in_place(None, self.server, NOTHING))
        self.go_back()
        self.assertEqual(before, self.cores())
        self.assert_never_stopped()

    def test_cores_are_there_for_a_revert_of_a_server_that_stops(self) -> None:
        before = self.cores()
        self.one.live.stubborn = ("it must start anew",)
        self.resize()
        self.one.lifecycle.remove(self.server, keep_disk=True)
        self.go_back()
        self.assertEqual(before, self.cores())
        self.assert_as_it_was()

    def test_cores_are_free_when_the_resize_is_confirmed(self) -> None:
        self.resize()
        self.here.confirm(self.server, self.move)
        self.other("instance-00000003")

    def test_a_confirmed_resize_stays_so_if_the_engine_does_not_answer(self) -> None:
        self.resize()
        self.one.engine.fail["set_limits"] = errors.EngineUnavailable("no answer")
        self.here.confirm(self.server, self.move)
