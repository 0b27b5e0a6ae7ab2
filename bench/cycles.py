#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Give a running server a GPU and a VF ten thousand times: does anything stay, or grow, or become slower?

    sudo .venv/bin/python bench/cycles.py [--cycles N] [--json]

In a cycle the server gets a GPU by a live resize and an InfiniBand VF as a port, and loses both. Progress goes to
standard error. Told to end (SIGTERM, SIGINT), it ends after the cycle it is in and tells of those it did. Status 1 when
something is left, when memory grew, or when there was not one cycle.
"""

import dataclasses
import json
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import emulated
import stage
from attach_gpu import resize
from census import Registrar, changes, resident
from nova import objects
from nova.network import model

from containerhost.devices.model import Device, Kind, LinkLayer, Role
from containerhost.inventory.scan import scan
from tests.unit.nova import ports, records

CYCLES = 10_000
WARM_UP = 10  # cycles until everything that is loaded or opened once is
GROWTH = 8 * 1024  # KiB that the process may grow by: the allocator's play, not a byte for each of many cycles
SAMPLES = 200
ORDER = ("give GPU", "attach VF", "detach VF", "take GPU")
PORT_REQUEST = "00000000-0000-4000-8000-0000000000ff"


@dataclasses.dataclass
class Found:
    """:ivar asked, done: cycles
    :ivar seconds: of each cycle
    :ivar of_acts: seconds of each act, by its name
    :ivar resident: pairs of cycle and KiB
    :ivar left: what is more or less than before
    :ivar error: why it ended before its time
    """

    asked: int
    seconds: list[float] = dataclasses.field(default_factory=list)
    of_acts: dict[str, list[float]] = dataclasses.field(default_factory=lambda: {name: [] for name in ORDER})
    resident: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    left: dict[str, dict[str, list[str]]] = dataclasses.field(default_factory=dict)
    error: str | None = None

    @property
    def done(self) -> int:
        return len(self.seconds)

    @property
    def growth(self) -> int:
        """KiB between the medians of the first and the last tenth of the samples."""
        sizes = [size for _, size in self.resident]
        tenth = max(1, len(sizes) // 10)
        return round(statistics.median(sizes[-tenth:]) - statistics.median(sizes[:tenth])) if sizes else 0

    @property
    def good(self) -> bool:
        return bool(self.done) and not self.left and self.growth <= GROWTH and self.error is None

    def to_dict(self) -> dict[str, Any]:
        tenth = max(1, self.done // 10)
        shown = self.resident[:: max(1, len(self.resident) // 20)]
        return {
            "asked": self.asked, "done": self.done, "error": self.error, "left": self.left,
            "cycle_s": median(self.seconds), "first_tenth_s": median(self.seconds[:tenth]),
            "last_tenth_s": median(self.seconds[-tenth:]),
            "acts_s": {name: median(times) for name, times in self.of_acts.items()},
            "resident_kib": shown, "growth_kib": self.growth, "good": self.good}


def median(times: list[float]) -> float | None:
    return round(statistics.median(times), 4) if times else None


def main() -> int:
    chosen = emulated.options(__doc__, cycles=CYCLES)
    emulated.enter()
    told = Told()
    with stage.Stage() as scene:
        found = Cycles(scene).run(chosen.cycles, told)
    if chosen.json:
        print(json.dumps(found.to_dict()), flush=True)
    else:
        print(text(found))
    return int(not found.good)


class Told:
    """Return whether this process was told to end; a signal must not end it in the middle of a cycle."""

    def __init__(self) -> None:
        self.to_end = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)

    def _end(self, number: int, frame: Any) -> None:
        self.to_end = True


class Cycles:
    def __init__(self, scene: stage.Stage) -> None:
        self._scene = scene
        gpu = chosen(lambda device: device.kind is Kind.GPU and not device.host_use)
        function = chosen(lambda device: device.role is Role.VF and device.link_layer is LinkLayer.INFINIBAND)
        self._port = ports.direct(address=function.address, type=model.VIF_TYPE_IB_HOSTDEV)
        self._bare, self._equipped = (with_port(scene.server(1, *claims), function)
                                      for claims in ((), (("gpu", gpu.address),)))
        conf = scene.conf
        self._registrar = Registrar(scene.lxd.engine, Path(conf.lxd.owners_dir), (
            Path(conf.lxd.owners_dir), Path(conf.instances_path), scene.lxd.daemon.directory / "devices"))
        self._acts: dict[str, Callable[[], None]] = {
            "give GPU": lambda: resize(scene, self._bare, self._equipped),
            "attach VF": lambda: scene.driver.attach_interface(None, self._equipped, scene.image_meta, self._port),
            "detach VF": lambda: scene.driver.detach_interface(None, self._equipped, self._port),
            "take GPU": lambda: resize(scene, self._equipped, self._bare),
        }

    def run(self, cycles: int, told: Told) -> Found:
        self._scene.spawn(self._bare)
        found = Found(cycles)
        try:
            for _ in range(WARM_UP):
                self._cycle(Found(0))
            before = self._registrar.take(self._bare.name)
            began = time.monotonic()
            for number in range(cycles):
                if told.to_end:
                    break
                self._cycle(found)
                if number % max(1, cycles // SAMPLES) == 0:
                    found.resident.append((number, resident()))
                    progress(found, time.monotonic() - began)
            found.left = changes(before, self._registrar.take(self._bare.name))
        except Exception:
            found.error = traceback.format_exc()
        finally:
            self._scene.driver.destroy(None, self._bare, None)
        return found

    def _cycle(self, found: Found) -> None:
        times = {}
        for name in ORDER:
            began = time.perf_counter()
            self._acts[name]()
            times[name] = time.perf_counter() - began
        for name, taken in times.items():
            found.of_acts[name].append(taken)
        found.seconds.append(sum(times.values()))


def chosen(fits: Callable[[Device], bool]) -> Device:
    return next(device for device in scan().devices if device.healthy and fits(device))


def with_port(server: objects.Instance, function: Device) -> objects.Instance:
    """Return the server with the claim that nova makes for a direct port."""
    claim = objects.PciDevice(address=function.address, request_id=PORT_REQUEST, compute_node_id=records.NODE)
    server.pci_devices.objects.append(claim)
    server.info_cache = objects.InstanceInfoCache(network_info=model.NetworkInfo())
    return server


def progress(found: Found, passed: float) -> None:
    print(f"{found.done} of {found.asked} cycles in {passed:.0f} s, {found.seconds[-1]:.3f} s the last, "
          f"{found.resident[-1][1]} KiB", file=sys.stderr, flush=True)


def text(found: Found) -> str:
    told = found.to_dict()
    acts = ", ".join(f"{name} {seconds} s" for name, seconds in told["acts_s"].items())
    lines = [f"{found.done} of {found.asked} cycles: {told['cycle_s']} s each (the first tenth {told['first_tenth_s']} "
             f"s, the last {told['last_tenth_s']} s; {acts}), medians",
             f"memory grew by {found.growth} KiB (at most {GROWTH})"]
    for kind, change in found.left.items():
        lines.append(f"{kind}: {len(change['more'])} more {change['more'][:5]}, {len(change['less'])} less "
                     f"{change['less'][:5]}")
    return "\n".join([*lines, *([found.error] if found.error else [] if found.left else ["nothing is left"])])


if __name__ == "__main__":
    sys.exit(main())
