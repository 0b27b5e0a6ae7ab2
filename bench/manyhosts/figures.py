# SPDX-License-Identifier: Apache-2.0
"""Summarize what a cloud of many hosts was measured to do. Pure, but for the log of Placement's requests."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

AIM_RATIO = 2.0  # of the 99th percentile of the boots to their median
IDS = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")


def placement_requests(log: Path, offset: int) -> dict[str, list[tuple[float, float]]]:
    """Return seconds and processor time of each request since the offset, by kind."""
    found: dict[str, list[tuple[float, float]]] = {}
    with log.open() as lines:
        lines.seek(offset)
        for line in lines:
            _begin, wall, processor, method, url = line.split(maxsplit=4)
            kind = f"{method} {IDS.sub('ID', url.partition('?')[0])}"
            found.setdefault(kind, []).append((float(wall), float(processor)))
    return found


def per_service(before: Mapping[str, float], after: Mapping[str, float], count: float) -> dict[str, float]:
    return {name: (spent - before.get(name, 0)) / count for name, spent in after.items()
            if spent - before.get(name, 0) > 0}


def percentile(ordered: Sequence[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, math.ceil(part * len(ordered)) - 1)] if ordered else math.inf


def text(found: Mapping[str, Any]) -> str:
    boot, resting = found["boots"], found["rest"]
    lines = [f"{found['hosts']} hosts with {found['gpus']} GPUs, {found['at_once']} boots at once",
             f"memory, MiB: {table(found['memory_mib'])}"]
    if resting:
        lines += ["of a host at rest in a minute:",
                  f"  requests to Placement: {table(resting['requests_per_host_minute'])}",
                  f"  requests to the conductor: {table(resting['conductor_per_host_minute'])}",
                  f"  processor time, s: {table(resting['processor_per_host_minute'])}"]
    lines += [f"{boot['count']} boots, {boot['failed']} failed, {boot['rescheduled']} rescheduled: "
              f"{boot['per_minute']:.1f} a minute; p50 {boot['p50']:.2f} s, p95 {boot['p95']:.2f} s, p99 "
              f"{boot['p99']:.2f} s, p99/p50 {boot['p99'] / boot['p50']:.2f} (aim {AIM_RATIO:g})",
              f"Placement's share of the time of the boots: {boot['placement_share']:.0%}",
              f"processor time of a boot, s: {table(boot['processor_per_boot'])}",
              f"requests to the conductor of a boot: {table(boot['conductor_per_boot'])}",
              f"requests to LXD of a boot: {table(boot['lxd_per_boot'])}", "Placement's requests of a boot:"]
    lines += [f"  {kind:60}{of['per_boot']:7.2f}{of['ms']:9.1f} ms{of['processor_ms']:9.1f} ms of processor time"
              for kind, of in boot["placement"].items()]
    if further := found["trackers"]:
        lines.append(f"{further['count']} further hosts")
        for gpus, updates in further["updates"].items():
            lines += [f"  {gpus} GPUs, update {update}: {table(of)}" for update, of in updates.items()]
            lines += [f"  {gpus} GPUs, candidates for {wanted}: {table(of)}"
                      for wanted, of in further["candidates"][gpus].items()]
    return "\n".join(lines)


def table(figures: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {figure:.3g}" for name, figure in sorted(figures.items(), key=lambda item: -item[1]))
