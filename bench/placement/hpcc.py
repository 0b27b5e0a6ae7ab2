# SPDX-License-Identifier: Apache-2.0
"""Read what the HPC Challenge benchmark (Debian's hpcc) measured on a machine."""

import dataclasses
import pathlib
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Rates of one core.

    :ivar dgemm_gflops: of one rank alone
    :ivar dgemm_star: rate of a rank while all ranks compute, in parts of one alone
    :ivar stream_gbytes: triad of one rank alone, GB/s
    :ivar stream_star: as ``dgemm_star``
    :ivar fft_star: as ``dgemm_star``
    :ivar fft_messages: share of the global FFT's time in its three transpositions
    :ivar ptrans_gbytes: transposition of a matrix by all ranks, GB/s
    :ivar ring_gbytes: of one rank in the randomly ordered ring, GB/s
    :ivar ring_latency_us: of the same ring
    """

    ranks: int
    dgemm_gflops: float
    dgemm_star: float
    stream_gbytes: float
    stream_star: float
    fft_star: float
    fft_messages: float
    ptrans_gbytes: float
    ring_gbytes: float
    ring_latency_us: float


def read(paths: Sequence[pathlib.Path]) -> Calibration:
    """Return the calibration from the ``hpccoutf.txt`` of one or more runs on the same machine.

    Takes each rate's best run, because what else the machine does makes rates smaller and never larger.

    :raises ValueError: a file has no summary, or a figure of it is missing
    """
    runs = [summary(path.read_text(encoding="utf-8", errors="replace")) for path in paths]
    if not runs:
        raise ValueError("no output of hpcc is given: run hpcc and name its hpccoutf.txt")
    try:
        best = {key: max(run[key] for run in runs) for key in runs[0] if key in _RATES}
        shares = [sum(run[f"MPIFFT_time{step}"] for step in (1, 3, 5)) /
                  sum(run[f"MPIFFT_time{step}"] for step in range(1, 6)) for run in runs]
        return Calibration(
            ranks=int(runs[0]["CommWorldProcs"]), dgemm_gflops=best["SingleDGEMM_Gflops"],
            dgemm_star=min(1.0, best["StarDGEMM_Gflops"] / best["SingleDGEMM_Gflops"]),
            stream_gbytes=best["SingleSTREAM_Triad"],
            stream_star=min(1.0, best["StarSTREAM_Triad"] / best["SingleSTREAM_Triad"]),
            fft_star=min(1.0, best["StarFFT_Gflops"] / best["SingleFFT_Gflops"]),
            fft_messages=sorted(shares)[len(shares) // 2], ptrans_gbytes=best["PTRANS_GBs"],
            ring_gbytes=best["RandomlyOrderedRingBandwidth_GBytes"],
            ring_latency_us=min(run["RandomlyOrderedRingLatency_usec"] for run in runs))
    except KeyError as error:
        raise ValueError(f"the summary of hpcc has no {error.args[0]}: let all of its tests run") from error


_RATES = {"SingleDGEMM_Gflops", "StarDGEMM_Gflops", "SingleSTREAM_Triad", "StarSTREAM_Triad", "SingleFFT_Gflops",
          "StarFFT_Gflops", "PTRANS_GBs", "RandomlyOrderedRingBandwidth_GBytes"}


def summary(text: str) -> dict[str, float]:
    """Return the numbers of the section "Summary", by name.

    :raises ValueError: there is none; hpcc writes it last, so that the run did not end well
    """
    found: dict[str, float] = {}
    inside = False
    for line in text.splitlines():
        if line.startswith("End of Summary"):
            return found
        if inside:
            name, _, number = line.partition("=")
            try:
                found[name] = float(number)
            except ValueError:
                continue
        inside = inside or line.startswith("Begin of Summary")
    raise ValueError("no whole summary in the output of hpcc: its run did not end")
