#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run the simulations and print their tables.

    sudo tools/install simulator
    .venv/bin/python -m bench.placement fit --hpcc hpccoutf.txt ...
    .venv/bin/python -m bench.placement thesis [--plots DIR]
    .venv/bin/python -m bench.placement trace --trace DIR [--plots DIR]
    .venv/bin/python -m bench.placement onedrs --onedrs DIR [--plots DIR]
"""

import argparse
import dataclasses
import pathlib
import sys
from collections.abc import Sequence

from bench.placement import parameters


def fit(options: argparse.Namespace) -> None:
    """Read hpcc's output, fit the other parameters and write them."""
    from bench.placement import fit as fitting  # noqa: PLC0415  (each command has what it alone needs)
    from bench.placement import hpcc  # noqa: PLC0415

    found = fitting.fit(hpcc.read(options.hpcc), range(1, options.seeds + 1))
    parameters.save(found)
    print(found)


def thesis(options: argparse.Namespace) -> None:
    """Simulate the scenarios of the thesis."""
    from bench.placement import plots  # noqa: PLC0415
    from bench.placement import thesis as experiment  # noqa: PLC0415

    found = parameters.load()
    if options.measured_messages:
        found = dataclasses.replace(found, core_messages=found.calibration.ring_gbytes)
    result = experiment.run(found, range(1, options.seeds + 1), options.spread)
    print(experiment.table(result))
    if options.plots:
        plots.thesis(result, options.plots)


def trace(options: argparse.Namespace) -> None:
    """Let the tasks of the trace arrive under every policy."""
    from bench.placement import allocation, plots  # noqa: PLC0415
    from bench.placement import trace as reader  # noqa: PLC0415

    nodes, tasks = reader.read(options.trace)
    curves = {}
    for policy in options.policies or allocation.POLICIES:
        curves[policy] = [allocation.curve(nodes, tasks, policy, seed) for seed in range(1, options.seeds + 1)]
        print(f"{policy}: {100 * list(curves[policy][0].shares.values())[-1]:.2f} %", file=sys.stderr, flush=True)
    print(allocation.table(curves))
    if options.plots:
        plots.trace(curves, options.plots)


def onedrs(options: argparse.Namespace) -> None:
    """Place equal instances with OneDRS."""
    from bench.placement import onedrs as comparison  # noqa: PLC0415
    from bench.placement import plots  # noqa: PLC0415

    rows = []
    for row in comparison.compare(options.onedrs, options.hosts, seed=1, limit=options.limit):
        print(row, file=sys.stderr, flush=True)
        rows.append(row)
    print(comparison.table(rows))
    if options.plots:
        plots.onedrs(rows, options.plots)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status."""
    parser = argparse.ArgumentParser(prog="bench.placement", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for function, help_text in ((fit, "fit the parameters"), (thesis, "scenarios of the thesis"),
                                (trace, "a GPU cluster's trace"), (onedrs, "OpenNebula's OneDRS")):
        command = commands.add_parser(function.__name__, help=help_text)
        command.set_defaults(run=function)
        if function is fit:
            command.add_argument("--hpcc", type=pathlib.Path, nargs="+", required=True, help="hpccoutf.txt of each run")
        if function in (fit, thesis, trace):
            command.add_argument("--seeds", type=int, default=5 if function is thesis else 3)
        if function is thesis:
            command.add_argument("--spread", type=float, default=0.0, help="lengths of benchmarks differ by this part")
            command.add_argument("--measured-messages", action="store_true",
                                 help="messages at the rate that hpcc measured, not at the fitted one")
        if function is trace:
            command.add_argument("--trace", type=pathlib.Path, required=True, help="directory with the trace's files")
            command.add_argument("--policies", nargs="+", help="only these")
        if function is onedrs:
            command.add_argument("--onedrs", type=pathlib.Path, required=True, help="checkout of OpenNebula")
            command.add_argument("--hosts", type=int, nargs="+", default=[5, 10, 20, 50, 100])
            command.add_argument("--limit", type=float, default=60.0, help="seconds for its solver")
        if function is not fit:
            command.add_argument("--plots", type=pathlib.Path, help="directory for the plots as SVG and PNG")
    options = parser.parse_args(arguments)
    try:
        options.run(options)
    except ValueError as error:
        print(f"bench.placement: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
