# SPDX-License-Identifier: Apache-2.0
"""Draw the results as SVG and PNG."""

import pathlib
from collections.abc import Mapping, Sequence

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from bench.placement import published
from bench.placement.allocation import Curve
from bench.placement.onedrs import Row
from bench.placement.thesis import Result

# Without dates and random ids, so that equal results are equal files.
matplotlib.rcParams.update({"svg.hashsalt": "bench.placement", "svg.fonttype": "none", "font.size": 9})


def thesis(result: Result, directory: pathlib.Path) -> None:
    """Draw the makespans of table 6.3 beside the simulated ones, and the changes of the response time."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
    names = [name for name in result.makespan if name != "Volcano-like"]
    at = range(len(names))
    left.bar([x - 0.2 for x in at], [published.MAKESPAN.get(name, 0.0) for name in names], 0.4, label="thesis")
    left.bar([x + 0.2 for x in at], [result.makespan[name] for name in names], 0.4, label="simulated")
    left.set_xticks(list(at), [name.replace("+", "\n+") for name in names])
    left.set_ylabel("makespan, s")
    left.legend()
    names = list(published.RESPONSE)
    for base, shift in ((0, 0.0), (1, len(names))):
        for which, (values, offset) in enumerate(((published.RESPONSE, -0.2), (result.response_change, 0.2))):
            right.bar([x + shift + offset for x in range(len(names))], [100 * values[name][base] for name in names],
                      0.4, color=f"C{which}")
    right.set_xticks(range(2 * len(names)), [f"{name.replace('+', chr(10) + '+')}\n{base}" for base in
                                            ("to affinity", "to none") for name in names])
    right.set_ylabel("change of response time, %")
    _save(figure, directory / "simulator-thesis")


def trace(curves: Mapping[str, Sequence[Curve]], directory: pathlib.Path) -> None:
    """Draw the share of allocated GPUs over what was asked for, of the first seed."""
    figure, axes = plt.subplots(figsize=(6, 3.6))
    for name, runs in curves.items():
        points = sorted((asked, share) for asked, share in runs[0].shares.items() if asked >= 75)
        axes.plot([asked for asked, _ in points], [100 * share for _, share in points], label=name)
    axes.set_xlabel("GPUs asked for, % of all")
    axes.set_ylabel("GPUs allocated, % of all")
    axes.legend()
    _save(figure, directory / "simulator-trace")


def onedrs(rows: Sequence[Row], directory: pathlib.Path) -> None:
    """Draw the time of both over the number of hosts."""
    figure, axes = plt.subplots(figsize=(6, 3.4))
    for kind, marker in (("job", "o"), ("mixed", "s")):
        of_kind = [row for row in rows if row.kind == kind]
        hosts = [row.hosts for row in of_kind]
        axes.loglog(hosts, [row.ours_seconds for row in of_kind], f"C0{marker}-", label=f"this project, {kind}")
        axes.loglog(hosts, [row.onedrs_seconds for row in of_kind], f"C1{marker}-", label=f"OneDRS, {kind}")
    axes.set_xlabel("hosts")
    axes.set_ylabel("seconds")
    axes.legend()
    _save(figure, directory / "simulator-onedrs")


def _save(figure: Figure, path: pathlib.Path) -> None:
    figure.tight_layout()
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    figure.savefig(path.with_suffix(".png"), dpi=90)
    plt.close(figure)
