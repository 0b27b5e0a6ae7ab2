# SPDX-License-Identifier: Apache-2.0
"""GPUs of containers that opted in: claims, what is decided about them, and what is told."""

import dataclasses
import json
from typing import Any

import testtools

from containerhost.allocation import refusals
from containerhost.allocation.drain import holders
from containerhost.allocation.refusals import Request
from containerhost.allocation.states import State
from containerhost.allocation.store import Allocation, Consumer
from containerhost.devices.model import CharNode, Device, Kind
from containerhost.elastic import gpuplan, metrics
from containerhost.elastic.gpuplan import Decision, GpuMember
from containerhost.engines import gpubounds
from containerhost.engines.gpubounds import GpuBounds
from containerhost.errors import DeviceUnhealthy, SpecError
from containerhost.inventory.scan import Inventory
from containerhost.operator import elasticcli

A, B, C, NET = "0000:3b:00.0", "0000:5e:00.0", "0000:af:00.0", "0000:d8:00.0"
OWNER = Consumer("nova", "lxd", "c1", "uuid")
TAINT = "tainted by the operator: fan"


def gpu(name: str, *health: str, **more: Any) -> Device:
    return Device(name, name, Kind.GPU, "10de", "20b0", "030200", "nvidia", **{
        "nodes": (CharNode("/dev/nvidia0", 195, 0),), "health": health,
        "outside": tuple(text for text in health if text == TAINT), **more})


def network() -> Device:
    return dataclasses.replace(gpu(NET, "its cable is out"), kind=Kind.NET)


def records(consumer: Consumer = OWNER, **states: State) -> dict[str, Allocation]:
    names = {"a": A, "b": B, "c": C, "net": NET}
    return {names[key]: Allocation(names[key], consumer, state=state) for key, state in states.items()}


def member(least: int = 1, *told: str) -> GpuMember:
    document = json.dumps({"generation": 3, "devices": [{"id": name, "kind": "gpu"} for name in told]})
    return GpuMember("lxd/c1", "c1", 7, GpuBounds(least), "mark", document)


class ClaimTest(testtools.TestCase):
    def test_mark_tells_the_claim(self) -> None:
        for bounds in (GpuBounds(0), GpuBounds(2, frozenset({"compute", "utility"}))):
            self.assertEqual(bounds, gpubounds.parse({gpubounds.LABEL: gpubounds.mark(bounds)}))
        self.assertIsNone(gpubounds.parse({}))

    def test_marks_of_others_are_refused(self) -> None:
        good = json.loads(gpubounds.mark(GpuBounds(1)))
        for text in ("", "[]", "{}", "[" * 100000, *(json.dumps(good | change) for change in (
                {"least": -1}, {"least": True}, {"least": 1000}, {"least": "1"}, {"libraries": ["all"]},
                {"libraries": 1}, {"version": 0}))):
            self.assertRaises(ValueError, gpubounds.parse, {gpubounds.LABEL: text})


class DecideTest(testtools.TestCase):
    def decide(self, least: int, devices: list[Device], told: tuple[str, ...] = (A, B), well: tuple[str, ...] = (),
               **states: State) -> Decision:
        found = records(**{"a": State.ATTACHED, "b": State.ATTACHED, **states})
        gpus = gpuplan.allocated("lxd", "c1", found, Inventory(tuple(devices)))
        return gpuplan.decide(member(least, *told), gpus, well)

    def test_nothing_moves_while_all_is_in_order(self) -> None:
        self.assertEqual(Decision(), self.decide(1, [gpu(A), gpu(B)]))
        self.assertEqual(Decision(), self.decide(1, [gpu(A), gpu(B), network()], net=State.ATTACHED))

    def test_what_is_out_of_order_goes_the_sick_one_first_and_never_below_the_least(self) -> None:
        sick, tainted = gpu(B, "Xid 79"), gpu(A, TAINT)
        self.assertEqual((B,), self.decide(1, [gpu(A), sick]).take)
        self.assertEqual((B,), self.decide(1, [tainted, sick]).take)
        self.assertEqual((B, A), self.decide(0, [tainted, sick]).take)
        self.assertEqual((), self.decide(2, [tainted, sick]).take)

    def test_one_that_is_coming_back_does_not_count_before_it_is_there(self) -> None:
        found = self.decide(1, [gpu(A), gpu(B, "Xid 79")], (B,), (A,), a=State.DETACHED)
        self.assertEqual(Decision((A,), (), False), found)

    def test_one_without_nodes_is_not_taken(self) -> None:
        self.assertEqual((), self.decide(1, [gpu(A), gpu(B, "no driver", nodes=())]).take)

    def test_document_that_says_something_else_is_corrected(self) -> None:
        for told in ((A,), (A, B, C)):
            self.assertTrue(self.decide(1, [gpu(A), gpu(B)], told).correct)

    def test_one_that_left_the_host_is_not_given(self) -> None:
        found = self.decide(1, [gpu(A)], (A,), (), b=State.DETACHED)
        self.assertEqual(Decision(), found)

    def test_one_that_returned_out_of_order_is_taken_before_it_is_told(self) -> None:
        sick = gpu(B, "Xid 79")
        self.assertEqual(Decision((), (B,), False), self.decide(1, [gpu(A), sick], (A,)))
        self.assertEqual(Decision((), (), True), self.decide(2, [gpu(A), sick], (A,)))  # it has to do with it

    def test_records_of_two_consumers_are_nobodys(self) -> None:
        found = records(a=State.ATTACHED) | records(dataclasses.replace(OWNER, uuid="other"), b=State.ATTACHED)
        self.assertIsNone(gpuplan.allocated("lxd", "c1", found, Inventory((gpu(A), gpu(B)))).consumer)
        self.assertIsNone(gpuplan.allocated("docker", "c1", records(a=State.ATTACHED), Inventory((gpu(A),))).consumer)


class StartTest(testtools.TestCase):
    """Test what a stopped container starts with."""

    def left(self, least: int, *devices: Device, **states: State) -> set[str]:
        found = records(**states)
        return set(refusals.left_out(Inventory(devices), [Request(device.id) for device in devices], found, least))

    def test_what_is_out_of_order_is_left_out(self) -> None:
        sick, tainted = gpu(B, "Xid 79"), gpu(C, TAINT)
        both = {"a": State.ATTACHED, "b": State.ATTACHED, "c": State.DETACHED}
        self.assertEqual({B, C}, self.left(1, gpu(A), sick, tainted, **both))
        self.assertEqual({B}, self.left(2, gpu(A), sick, tainted, **both))  # rather a tainted one
        self.assertEqual(set(), self.left(3, gpu(A), sick, tainted, **both))
        self.assertEqual(set(), self.left(0, gpu(A), network(), a=State.ATTACHED, net=State.ATTACHED))

    def test_new_claims_are_not_left_out(self) -> None:
        sick = gpu(B, "Xid 79")
        self.assertEqual(set(), self.left(0, gpu(A), sick))
        for state in (State.CLAIMED, State.PREPARED, State.CLEANING):
            self.assertEqual(set(), self.left(0, gpu(A), sick, a=State.ATTACHED, b=state))

    def test_more_than_there_are_is_refused(self) -> None:
        inventory, wanted = Inventory((gpu(A),)), [Request(A)]
        away = records(a=State.ATTACHED, b=State.DETACHED)
        refusals.require_gpus(inventory, wanted, away, 1)
        self.assertRaises(DeviceUnhealthy, refusals.require_gpus, inventory, wanted, away, 2)
        self.assertRaises(SpecError, refusals.require_gpus, inventory, wanted, away, 3)

    def test_drained_device_has_no_holder(self) -> None:
        inventory = Inventory((gpu(A),))
        self.assertEqual({A: str(OWNER)}, holders(records(a=State.ATTACHED), gpu(A), inventory))
        self.assertEqual({}, holders(records(a=State.DETACHED), gpu(A), inventory))


class ToldTest(testtools.TestCase):
    def test_status_and_metrics(self) -> None:
        found = gpuplan.allocated("lxd", "c1", records(a=State.ATTACHED, b=State.DETACHED), Inventory((gpu(A), gpu(B))))
        row = {"container": "lxd/c1", "announced": True, "gpus": gpuplan.row(member(1, A), found, {B: TAINT})}
        title, line = elasticcli.listed([row]).splitlines()
        self.assertEqual(["CONTAINER", "GPUS", "OF", "WHICH", "WITHOUT"], title.split())
        self.assertEqual(f"lxd/c1 1 1-2 {A} {B} ({TAINT}) announced", " ".join(line.split()))
        (family,) = [each for each in metrics.families({"containers": [row]}, {})
                     if each.name == "containerhost_elastic_gpus"]
        self.assertEqual({"least": 1, "present": 1, "most": 2},
                         {sample.labels["kind"]: sample.value for sample in family.samples})
