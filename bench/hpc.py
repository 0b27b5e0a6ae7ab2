#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run MPI programs on the host and in containers of LXD and Docker, with each affinity, interleaved.

Which part of bare metal do containers reach?

    sudo tools/install hpc
    sudo .venv/bin/python bench/hpc.py [--rounds N] [--samples N] [--hpcc] [--json]

A round runs every variant once, in an order of its own. Samples during which the kernel preempted a rank are discarded
(bench/mpi/measure.c). The table has the median, least and greatest of what was measured, and the ratio of the median to
the host's: above 1 is better than the host, whether the quantity is a rate or a time. Interrupted (SIGINT), it prints
what it has.
"""

import argparse
import contextlib
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import emulated

ROUNDS, SAMPLES, HPCC_SIZE = 5, 40, 1000
SOURCE = Path(__file__).parent / "mpi/measure.c"
HPCC_INPUT = Path("/usr/share/doc/hpcc/examples/_hpccinf.txt")
HPCC = {"StarDGEMM_Gflops": "hpcc_dgemm_GFs", "StarSTREAM_Triad": "hpcc_triad_GBs", "PTRANS_GBs": "hpcc_ptrans_GBs",
        "MPIFFT_Gflops": "hpcc_fft_GFs", "HPL_Tflops": "hpcc_hpl_TFs",
        "AvgPingPongLatency_usec": "hpcc_latency_us"}
TCP = ", TCP"
BASE, TCP_BASE = "host, pinned", f"host{TCP}"
Values = dict[str, dict[str, list[float]]]  # variant, quantity


class Place(Protocol):
    def run(self, command: Sequence[str]) -> str: ...


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--samples", type=int, default=SAMPLES, help="of each quantity in a run")
    parser.add_argument("--only", default="", help="regular expression of the variants to run beside bare metal")
    parser.add_argument("--hpcc", action="store_true", help="run hpcc too, in the pinned variants")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    emulated.enter()
    values: Values = {}
    taken: dict[str, list[int]] = {}
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-hpc-", dir="/var/lib")))
        directory.chmod(0o755)
        build(directory)
        runs = variants(stack, directory, asked.samples)
        runs = {name: run for name, run in runs.items()
                if name in (BASE, TCP_BASE) or re.search(asked.only, name)}
        if asked.hpcc:
            runs |= hpcc_runs(runs)
        with contextlib.suppress(KeyboardInterrupt):
            for number in range(asked.rounds):
                for name in random.sample(list(runs), len(runs)):
                    print(f"round {number + 1} of {asked.rounds}: {name}", file=sys.stderr)
                    place, command = runs[name]
                    collect(place.run(command), name.removesuffix(WHOLE), values, taken)
    if asked.json:
        print(json.dumps({"values": values, "kept": taken}))
    else:
        print(table(values))
        for name, (kept, all_of_them) in sorted(taken.items()):
            print(f"{name}: {kept} of {all_of_them} samples kept")
    return 0


WHOLE = " (hpcc)"


def build(directory: Path) -> None:
    subprocess.run(["mpicc", "-O3", "-o", directory / "measure", SOURCE, "-lopenblas"], check=True)
    lines = HPCC_INPUT.read_text().splitlines()
    lines[5], lines[10] = f"{HPCC_SIZE} Ns", "1 Ps"
    (directory / "hpccinf.txt").write_text("\n".join(lines) + "\n")


def mpirun(*options: str) -> list[str]:
    return ["/usr/bin/mpirun", "-np", "2", *options]


def variants(stack: contextlib.ExitStack, directory: Path, samples: int) -> dict[str, tuple[Place, list[str]]]:
    """Start every container, and return the place and command of each variant."""
    import hpcplaces  # noqa: PLC0415  (nothing of the daemons is there before the emulated host is entered)

    free, pinned = mpirun("--bind-to", "none"), mpirun("--bind-to", "core")
    everything = ["/programs/measure", str(samples), "all"]
    messages = ["/programs/measure", str(samples), "messages"]
    tcp = ["--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo"]
    host = stack.enter_context(hpcplaces.host(directory))
    engines = hpcplaces.Engines(stack, directory)
    found: dict[str, tuple[Place, list[str]]] = {
        "host": (host, free + everything), BASE: (host, pinned + everything),
        TCP_BASE: (host, pinned + tcp + messages)}
    for engine in engines.engines:
        for affinity, cpu in hpcplaces.affinities().items():
            container = f"hpc-{affinity}"
            place = engines.start(engine, container, cpu)
            stack.callback(engines.stop, engine, container)
            found[f"{engine}, {affinity}"] = (place, free + everything)
        found[f"{engine}, cpumempin"] = (place, pinned + everything)
        found[f"{engine}{TCP}"] = (place, pinned + tcp + messages)
    refused = engines.start("Docker", "hpc-refused", cpu, more={"Runtime": "runc"})
    stack.callback(engines.stop, "Docker", "hpc-refused")
    found["Docker's own runtime, pinned"] = (refused, pinned + everything)
    return found


def hpcc_runs(runs: Mapping[str, tuple[Place, list[str]]]) -> dict[str, tuple[Place, list[str]]]:
    script = (f"cd $(mktemp -d) && cp /programs/hpccinf.txt . && {' '.join(mpirun('--bind-to', 'core'))} /usr/bin/hpcc "
              "> /dev/null 2>&1 && cat hpccoutf.txt")
    return {f"{name}{WHOLE}": (place, ["/bin/sh", "-c", script]) for name, (place, _) in runs.items()
            if name.endswith(("pinned", "cpumempin"))}


def collect(output: str, name: str, values: Values, taken: dict[str, list[int]]) -> None:
    """Add what a run printed: lines of measure.c, or hpcc's NAME=VALUE."""
    own = values.setdefault(name, {})
    for line in output.splitlines():
        words = line.replace("=", " ").split()
        if words[:1] == ["samples"]:
            count = taken.setdefault(name, [0, 0])
            count[0], count[1] = count[0] + int(words[2]), count[1] + int(words[3])
        elif len(words) == 2 and words[0].endswith(("_us", "_GFs", "_MBs")) and "=" not in line:
            own.setdefault(words[0], []).append(float(words[1]))
        elif len(words) == 2 and words[0] in HPCC:
            own.setdefault(HPCC[words[0]], []).append(float(words[1]))


def ratio(quantity: str, value: float, base: float) -> float:
    """Return the part of the base that is reached: of a time, the base's is divided by the value."""
    return base / value if quantity.endswith("_us") else value / base


def table(values: Values) -> str:
    """Return the table in Markdown."""
    rows = ["| quantity | variant | median | least to greatest | samples | of bare metal |",
            "|---|---|---|---|---|---|"]
    for quantity in sorted({quantity for own in values.values() for quantity in own}):
        for name, own in values.items():
            found = own.get(quantity)
            base = values.get(TCP_BASE if name.endswith(TCP) else BASE, {}).get(quantity)
            if found:
                part = f"{ratio(quantity, statistics.median(found), statistics.median(base)):.2f}" if base else ""
                rows.append(f"| {quantity} | {name} | {statistics.median(found):.4g} | {min(found):.4g} to "
                            f"{max(found):.4g} | {len(found)} | {part} |")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
