#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rebuilding an image and importing the result, against importing the image as it is: aim <= 3 times, <= 128 MiB.

    sudo .venv/bin/python bench/rebuild.py [--runs N] [--files N] [--mib N] [--json]

It happens once per image and host. The image is a gzip tarball, as most are, of small files and one large one that does
not pack; both sides run in turns. The aim in seconds is what a boot from an image that is not cached may take longer.
Memory is the worker's, by the kernel's count of its largest.
"""

import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, cast

import emulated
from raw import Raw

AIM, MEMORY = 3.0, 128.0  # times, MiB
PEAK = """
import resource, sys, tempfile
from containerhost.images.rebuild import rebuild
with open(sys.argv[1], "rb") as file, tempfile.TemporaryFile() as target:
    rebuild(file, target, None, 600)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)
"""
SMALL = 4000  # bytes of a small file
MIB = 1 << 20


def main() -> int:
    chosen = emulated.options(__doc__, runs=5, files=30_000, mib=300)
    emulated.enter()
    from tests.functional.images import imported  # noqa: PLC0415  (found through emulated)
    from tests.functional.lxd import Lxd  # noqa: PLC0415
    with tempfile.TemporaryDirectory() as directory, Lxd() as lxd:
        image = build(Path(directory, "image.tar.gz"), chosen.files, chosen.mib)
        raw = Raw(lxd.socket)
        times: dict[str, list[float]] = {"rebuilt": [], "plain": [], "rebuild_alone": []}
        for _ in range(chosen.runs):
            for name, act in (("rebuilt", lambda: imported(lxd.store, image, "bench", {})),
                              ("plain", lambda: raw.upload(image))):
                seconds, fingerprint = timed(act)
                times[name].append(seconds)
                lxd.store.delete(fingerprint)
            times["rebuild_alone"].append(timed(lambda: alone(image))[0])
        found = {f"{name}_s": statistics.median(seconds) for name, seconds in times.items()}
        found |= {"ratio": found["rebuilt_s"] / found["plain_s"], "image_mib": image.stat().st_size / MIB,
                  "peak_mib": peak(image)}
    if chosen.json:
        print(json.dumps(found))
    else:
        print(f"rebuild: {chosen.files} files, {found['image_mib']:.0f} MiB packed: rebuilt and imported "
              f"{found['rebuilt_s']:.2f} s (the rebuild {found['rebuild_alone_s']:.2f} s), imported as it is "
              f"{found['plain_s']:.2f} s, ratio {found['ratio']:.2f} (aim <= {AIM:g}), peak of memory "
              f"{found['peak_mib']:.0f} MiB (aim <= {MEMORY:g}); medians of {chosen.runs}")
    return int(found["ratio"] > AIM or found["peak_mib"] > MEMORY)


def timed(act: Callable[[], str]) -> tuple[float, str]:
    begin = time.perf_counter()
    result = act()
    return time.perf_counter() - begin, result


def alone(image: Path) -> str:
    from containerhost.images.rebuild import rebuild  # noqa: PLC0415  (found through emulated)
    with image.open("rb") as file, tempfile.TemporaryFile() as target:
        return rebuild(file, cast(BinaryIO, target), None, 600).format


def peak(image: Path) -> float:
    """MiB of the largest process of a rebuild. A small process starts it: a child's count begins with its parent's."""
    return float(subprocess.run([sys.executable, "-c", PEAK, str(image)], capture_output=True, text=True, check=True,
                                cwd=emulated.REPOSITORY).stdout)


def build(path: Path, files: int, mib: int) -> Path:
    text = os.urandom(SMALL // 4) * 4
    with path.open("wb") as target, subprocess.Popen(["gzip", "-1"], stdin=subprocess.PIPE, stdout=target) as packer, \
            tarfile.open(fileobj=packer.stdin, mode="w|") as archive:
        for name, content in (("metadata.yaml", f"architecture: {os.uname().machine}\ncreation_date: 1\n".encode()),
                              *((f"rootfs/usr/share/{number // 100}/{number}", text) for number in range(files)),
                              ("rootfs/usr/large", os.urandom(MIB) * mib)):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


if __name__ == "__main__":
    sys.exit(main())
