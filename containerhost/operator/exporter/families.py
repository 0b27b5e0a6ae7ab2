# SPDX-License-Identifier: Apache-2.0
"""Translate a sample into Prometheus metrics. Pure.

Names and units follow https://prometheus.io/docs/practices/naming/. An unallocated device has empty labels
``driver``, ``engine`` and ``container``. No metric has a device's complaints as a label: they contain counts, and
would create new series constantly; ``containerhost list`` shows them.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from containerhost import vendors
from containerhost.allocation.timings import BOUNDS, Operation, Result, Timing
from containerhost.devices.model import Device
from containerhost.devices.rdmacounters import COUNTERS
from containerhost.errors import DeviceError
from containerhost.operator.exporter.sample import Sample
from containerhost.vendors.base import Use

PREFIX = "containerhost_"
HOLDER = ("driver", "engine", "container")
PERCENT = 100

Tell = Callable[[Use, Device], float | None]

#: Of GPUs and slices: name, help, what of the use.
USES: tuple[tuple[str, str, Tell], ...] = (
    ("gpu_utilization_ratio", "Share of time in which the GPU computed, 0 to 1.",
     lambda use, device: None if use.busy is None else use.busy / PERCENT),
    ("gpu_memory_utilization_ratio", "Share of time in which the GPU's memory was read or written, 0 to 1.",
     lambda use, device: None if use.memory_busy is None else use.memory_busy / PERCENT),
    ("gpu_memory_free_bytes", "Memory of the GPU or slice that no process uses.", lambda use, device: use.free),
    ("gpu_memory_total_bytes", "Memory of the GPU or slice.", lambda use, device: device.memory),
    ("gpu_power_watts", "Power that the GPU draws.", lambda use, device: use.power),
)
_PORT_HELP = {
    "received_bytes": "Data received by the RDMA port.", "sent_bytes": "Data sent by the RDMA port.",
    "received_packets": "Packets received by the RDMA port.", "sent_packets": "Packets sent by the RDMA port.",
    "receive_errors": "Received packets with an error.", "send_discards": "Packets that were not sent.",
    "send_wait": "Ticks in which the port had data to send and could not.",
    "symbol_errors": "Errors on the physical link.", "link_downed": "How often the link went down.",
}


def families(sample: Sample) -> Iterator[Metric]:
    """Yield every metric family, also without samples, so that queries find the name."""
    yield from _devices(sample)
    yield from _allocations(sample)
    yield from _uses(sample)
    yield from _ports(sample)
    yield _timings(sample.timings)


def _devices(sample: Sample) -> Iterator[Metric]:
    info = InfoMetricFamily(f"{PREFIX}device", "What the device is.")
    healthy = GaugeMetricFamily(f"{PREFIX}device_healthy", "1 if the device may be given to a container, else 0.",
                                labels=["device"])
    complaints = GaugeMetricFamily(f"{PREFIX}device_complaints", "How many complaints of its health the device has.",
                                   labels=["device"])
    notes = GaugeMetricFamily(f"{PREFIX}device_notes", "How many notes of its health the device has.",
                              labels=["device"])
    taint = GaugeMetricFamily(f"{PREFIX}device_tainted", "1 for each device that the operator keeps from new holders.",
                              labels=["device", "reason"])
    for device in sample.inventory.devices:
        if device.taint is not None:
            taint.add_metric([device.id, device.taint], 1)
        info.add_metric([], {
            "device": device.id, "address": device.address, "kind": device.kind.value, "role": device.role.value,
            "vendor": _vendor(device), "model": device.model or "", "uuid": device.uuid or "",
            "parent": device.parent or "", "netdev": device.netdev or "",
            "numa_node": "" if device.numa_node is None else str(device.numa_node),
            "profile": (device.slice.profile if device.slice else None) or ""})
        healthy.add_metric([device.id], float(device.healthy))
        complaints.add_metric([device.id], len(device.health))
        notes.add_metric([device.id], len(device.notes))
    yield from (info, healthy, taint, complaints, notes)


def _vendor(device: Device) -> str:
    try:
        return vendors.pci_vendor(device)
    except DeviceError:  # its plug-in is not installed
        return device.vendor_id


def _allocations(sample: Sample) -> Iterator[Metric]:
    yield GaugeMetricFamily(f"{PREFIX}allocations_readable", "0 if the allocation records cannot be trusted: no device "
                            "is handed out until they can.", value=float(sample.records is not None))
    found = GaugeMetricFamily(f"{PREFIX}allocation", "1 for each device that a container has, or that is blocked.",
                              labels=["device", "state", *HOLDER, "uuid"])
    for record in (sample.records or {}).values():
        found.add_metric([record.device_id, record.state.value, *_holder(sample, record.device_id),
                          record.consumer.uuid], 1)
    yield found


def _holder(sample: Sample, device_id: str) -> tuple[str, str, str]:
    record = (sample.records or {}).get(device_id)
    if record is None:
        return "", "", ""
    return record.consumer.driver, record.consumer.engine, record.consumer.container


def _uses(sample: Sample) -> Iterator[Metric]:
    known = [(device, use) for device in sample.inventory.devices if (use := sample.uses.get(device.id)) is not None]
    for name, text, tell in USES:
        family = GaugeMetricFamily(PREFIX + name, text, labels=["device", *HOLDER])
        for device, use in known:
            if (value := tell(use, device)) is not None:
                family.add_metric([device.id, *_holder(sample, device.id)], value)
        yield family


def _ports(sample: Sample) -> Iterator[Metric]:
    for counter in COUNTERS:
        family = CounterMetricFamily(f"{PREFIX}rdma_port_{counter}", _PORT_HELP[counter],
                                     labels=["device", "port", *HOLDER])
        for port in sample.ports:
            if counter in port.values:
                family.add_metric([port.device_id, str(port.port), *_holder(sample, port.device_id)],
                                  port.values[counter])
        yield family


def _timings(timings: Iterable[Timing]) -> Metric:
    family = HistogramMetricFamily(
        f"{PREFIX}operation_seconds", "Time to acquire the devices of a container (claim, check, prepare), or to "
        "release them (clean, reset, free).", labels=["driver", "operation", "result"])
    known = {(timing.driver, timing.operation, timing.result): timing for timing in timings}
    # Prometheus sees no increase in a new series, so all series exist from the driver's first operation on.
    for key in itertools.product(sorted({timing.driver for timing in known.values()}), Operation, Result):
        timing = known.get(key, Timing(*key))
        totals = itertools.accumulate(timing.counts)
        buckets = list(zip([*map(str, BOUNDS), "+Inf"], totals, strict=True))
        family.add_metric([timing.driver, timing.operation.value, timing.result.value], buckets, timing.seconds)
    return family


def names(found: Iterable[Metric]) -> frozenset[str]:
    """Return the names of the series for queries."""
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum"), "info": ("_info",), "gauge": ("",)}
    return frozenset(family.name + suffix for family in found for suffix in suffixes[family.type])
