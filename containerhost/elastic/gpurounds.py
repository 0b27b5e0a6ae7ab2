# SPDX-License-Identifier: Apache-2.0
"""Check the GPUs of opted-in containers in rounds, and apply the decisions about them.

A loss is announced to the guest first, and takes place when the guest has acknowledged or its time has expired,
unless a process still has the GPU open. A container that gets a GPU back is notified afterwards.
"""

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from containerhost import errors
from containerhost.elastic import gpuplan
from containerhost.elastic.changes import FAILURES, Changes
from containerhost.elastic.gpuplan import Decision, GpuMember, Gpus
from containerhost.elastic.gpus import EngineGpus
from containerhost.elastic.state import Step
from containerhost.engines import gpubounds
from containerhost.engines.contract import ContainerState, Metrics, Status
from containerhost.guest import resources
from containerhost.inventory.scan import HostView, Inventory

LOG = logging.getLogger(__name__)

WELL_TIME = 10.0  # s for which a GPU must be healthy before it is attached again


@dataclasses.dataclass(frozen=True)
class Reading:
    """Hold a container's GPUs, with the host view from which they were read."""

    gpus: Gpus
    view: HostView

    @property
    def inventory(self) -> Inventory:
        return self.view.inventory


class GpuRounds:
    """Detach faulty GPUs from running opted-in containers, and reattach recovered ones.

    :param engines: those of which containers can run without some of their GPUs
    :ivar rows: status rows of the last round by container
    """

    def __init__(self, engines: Mapping[str, EngineGpus], changes: Changes, monotonic: Callable[[], float]) -> None:
        self._engines = engines
        self._changes = changes
        self._monotonic = monotonic
        self._well_since: dict[str, float] = {}
        self.rows: dict[str, dict[str, Any]] = {}

    def member(self, engine: str, state: ContainerState, metrics: Metrics) -> GpuMember | None:
        """Return an opted-in container that runs; None for all others, which are never touched."""
        if (engine not in self._engines or state.status is not Status.RUNNING or metrics.pid is None
                or gpubounds.LABEL not in state.labels):
            return None
        try:
            own = gpubounds.parse(state.labels)
        except ValueError as error:
            LOG.warning("Container %s/%s keeps its GPUs: %s", engine, state.name, error)
            return None
        if own is None:
            return None
        return GpuMember(f"{engine}/{state.name}", state.name, metrics.pid, own, state.labels[gpubounds.LABEL],
                         state.labels.get(resources.LABEL))

    def plan(self, members: Sequence[GpuMember]) -> dict[str, dict[str, Any]]:
        """Return the status without changing anything."""
        return {key: row(member, reading) for key, (member, reading) in self._read(members).items()}

    def round(self, members: Sequence[GpuMember]) -> list[GpuMember]:
        """Bring each container one step closer to its decided GPUs.

        :raises EngineUnavailable: an engine does not answer
        """
        keys = {member.key for member in members}
        for key in [key for key, step in self._changes.steps.items() if step.devices and key not in keys]:
            self._changes.forget(key)
        try:
            readings = self._read(members)
            self._record_healthy(readings)
            after = [self._one(member, readings[member.key][1]) for member in members]
            self.rows = self.plan(after)
        except errors.EngineUnavailable:
            raise
        except FAILURES as error:
            LOG.error("No GPU is detached or attached in this round: %s", error)
            return list(members)
        return after

    def _read(self, members: Sequence[GpuMember]) -> dict[str, tuple[GpuMember, Reading]]:
        """Return the GPUs allocated to the containers; each engine's records and the host's devices are read once."""
        found = {}
        for name, engine in self._engines.items():
            mine = [member for member in members if member.key.partition("/")[0] == name]
            if mine:
                view, records = engine.view(), engine.store.records()
                found.update({member.key: (member, Reading(gpuplan.allocated(engine.name, member.name, records,
                                                                          view.inventory), view)) for member in mine})
        return found

    def _record_healthy(self, readings: Mapping[str, tuple[GpuMember, Reading]]) -> None:
        """Record since when each detached GPU has been healthy."""
        well = {device.id for _, reading in readings.values() for device in reading.inventory.devices
                if device.healthy and device.id in reading.gpus.detached}
        self._well_since = {name: self._well_since.get(name, self._monotonic()) for name in well}

    def _one(self, member: GpuMember, reading: Reading) -> GpuMember:
        step = self._changes.steps.get(member.key)
        if (step and not step.devices) or member.document is None:
            return member
        well = {name for name, since in self._well_since.items() if self._monotonic() - since >= WELL_TIME}
        decision = gpuplan.decide(member, reading.gpus, well)
        if step:
            return self._continue(member, reading, step, decision)
        if reading.gpus.consumer is None:
            return member
        if (decision.correct or decision.give) and not self._changes.is_backing_off(giving(member)):
            return self._give(member, reading, decision)
        if decision.take and not self._changes.is_backing_off(member.key):
            return self._begin(member, reading, decision.take)
        return member

    def _give(self, member: GpuMember, reading: Reading, decision: Decision) -> GpuMember:
        def failed(why: str, error: Exception) -> GpuMember:
            LOG.warning("Container %s %s: %s", member.key, why, error)
            self._changes.count("change", "failed")
            self._changes.back_off(giving(member))
            return member

        try:
            document = self._engine(member).give(member, reading.gpus, decision.give, reading.view)
        except (errors.EngineUnavailable, errors.EngineTimeout):
            raise  # the next round repeats it
        except (errors.EngineConflict, errors.EngineNotFound, errors.DeviceBusy) as error:
            LOG.info("Container %s is checked again: %s", member.key, error)
            return member
        except errors.UnsupportedOnHost as error:
            return failed("gets its GPUs back when it is started again", error)
        except FAILURES as error:
            return failed("does not get its GPUs back", error)
        for name in decision.give:
            LOG.info("Container %s has GPU %s again", member.key, name)
            self._changes.count("change", "grown")
        self._changes.forget(member.key)
        return dataclasses.replace(member, document=document)

    def _begin(self, member: GpuMember, reading: Reading, take: tuple[str, ...]) -> GpuMember:
        known = {device.id: device for device in reading.inventory.devices}
        document = resources.exchanged(member.document or "", take, (), known)
        step = Step(member.generation, member.mark, document, devices=take)
        for name in take:
            LOG.info("Container %s will lose GPU %s: %s", member.key, name, "; ".join(known[name].health))
        self._changes.put(member.key, step)  # recorded before the notice, so that it survives a kill
        if self._changes.announce(member, step):
            return member
        return self._take(member, reading, step, "unheard")

    def _continue(self, member: GpuMember, reading: Reading, step: Step, decision: Decision) -> GpuMember:
        """Resume a change that this process or a killed one began."""
        if step.mark != member.mark or (member.document != step.document and member.generation != step.generation):
            LOG.info("Container %s was changed by another process meanwhile", member.key)
            self._changes.forget(member.key)
            return member
        if step.applying or member.document == step.document:
            return self._take(member, reading, step, "recovered")
        if not set(step.devices) <= set(decision.take):
            self._changes.withdraw(member, "withdrawn")
            return member
        outcome = self._changes.outcome(member, step)
        return self._take(member, reading, step, outcome) if outcome else member

    def _take(self, member: GpuMember, reading: Reading, step: Step, outcome: str) -> GpuMember:
        try:
            document = self._engine(member).take(
                member, reading.gpus, step.devices,
                lambda: self._changes.put(member.key, dataclasses.replace(step, applying=True)), reading.view)
        except (errors.EngineUnavailable, errors.EngineTimeout):
            raise  # the outcome is unknown: keep the step
        except (errors.EngineConflict, errors.EngineNotFound, errors.DeviceBusy) as error:
            if not isinstance(error, errors.EngineBusy | errors.DeviceBusy):
                self._changes.forget(member.key)
            LOG.info("Container %s is checked again: %s", member.key, error)
            return member
        except errors.DeviceInUse as error:
            LOG.warning("Faulty GPU %s is in use and stays in container %s: %s", ", ".join(step.devices),
                        member.key, error)
            self._changes.fail(member, "in use")
            return member
        except FAILURES as error:
            LOG.warning("Faulty GPU %s could not be detached from container %s: %s", ", ".join(step.devices),
                        member.key, error)
            self._changes.fail(member, "failed")
            return member
        LOG.info("Container %s runs without GPU %s: %s", member.key, ", ".join(step.devices), outcome)
        self._changes.count("change", outcome)
        self._changes.forget(member.key)
        return dataclasses.replace(member, document=document)

    def _engine(self, member: GpuMember) -> EngineGpus:
        return self._engines[member.key.partition("/")[0]]


def giving(member: GpuMember) -> str:
    """Return the key under which a container's next gain is delayed; it may lose something meanwhile."""
    return f"{member.key} gets"


def row(member: GpuMember, reading: Reading) -> dict[str, Any]:
    reasons = {device.id: "; ".join(device.health) for device in reading.inventory.devices if device.health}
    return gpuplan.row(member, reading.gpus, reasons)
