# SPDX-License-Identifier: Apache-2.0
"""Translate observations and operations of the elastic service to Prometheus metrics.

Names and units as in :mod:`containerhost.operator.exporter.families`."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

PREFIX = "containerhost_elastic_"
SIZES = {"cores": ("least", "count", "wanted", "most"),
         "memory_bytes": ("memory_least", "memory", "memory_wanted", "memory_most")}
KINDS = ("least", "present", "wanted", "most")

Status = Mapping[str, Any]
Done = Mapping[tuple[str, str], int]


def families(status: Status, done: Done) -> Iterator[Metric]:
    """Yield every metric family, also without samples. Pure.

    :param status: of the service's last round
    :param done: number of operations by kind and outcome
    """
    rows = status.get("containers", ())
    for name, keys in SIZES.items():
        family = GaugeMetricFamily(PREFIX + name, f"{name.partition('_')[0].capitalize()} of a container: least, "
                                   "present, wanted and most.", labels=["engine", "container", "kind"])
        for row in rows:
            engine, _, container = row["container"].partition("/")
            for kind, key in zip(KINDS, keys, strict=True) if "cores" in row else ():
                family.add_metric([engine, container, kind], row[key])
        yield family
    yield gpu_family(rows)
    yield GaugeMetricFamily(f"{PREFIX}capacity_cores", "Cores that are divided.", value=len(status.get("cores", ())))
    yield GaugeMetricFamily(f"{PREFIX}capacity_memory_bytes", "Memory that is divided.", value=status.get("memory", 0))
    yield GaugeMetricFamily(f"{PREFIX}last_round_timestamp_seconds", "When the last round ended that was not broken "
                            "off.", value=status.get("time", 0))
    changes = CounterMetricFamily(f"{PREFIX}changes", "Changes of containers, by how they ended.", labels=["outcome"])
    failed = CounterMetricFamily(f"{PREFIX}failed_rounds", "Rounds that were broken off.",
                                 value=done.get(("round", "failed"), 0))
    for (kind, outcome), times in sorted(done.items()):
        if kind == "change":
            changes.add_metric([outcome], times)
    yield from (changes, failed)


def gpu_family(rows: Iterable[Mapping[str, Any]]) -> Metric:
    family = GaugeMetricFamily(f"{PREFIX}gpus", "GPUs of a container: least, present and most.",
                               labels=["engine", "container", "kind"])
    for row in rows:
        engine, _, container = row["container"].partition("/")
        if gpus := row.get("gpus"):
            for kind, value in (("least", gpus["least"]), ("present", len(gpus["present"])), ("most", gpus["most"])):
                family.add_metric([engine, container, kind], value)
    return family


class ElasticCollector(Collector):
    """Export the elastic service's metrics to Prometheus at each scrape."""

    def __init__(self, read: Callable[[], tuple[Status, Done]]) -> None:
        self._read = read

    def describe(self) -> Iterator[Metric]:
        """Describe no metric in advance."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        yield from families(*self._read())
