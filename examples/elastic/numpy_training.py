#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train a small network with numpy, with as many threads of its BLAS (OpenBLAS, MKL) as the container has cores.

    numpy_training.py [--rigid] [--steps N]

Prints each second the threads, the steps done in it and the loss. With --rigid the threads stay as they are at first.
"""

import argparse
import time

import numpy as np
from containerhost_guest import Follower, threads
from threadpoolctl import ThreadpoolController

WIDTH, BATCH, RATE = 512, 256, 0.05


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rigid", action="store_true")
    options.add_argument("--steps", type=int, default=1 << 62)
    chosen = options.parse_args()
    blas = ThreadpoolController()
    follower = None if chosen.rigid else Follower(lambda resources: blas.limit(limits=threads(resources)))
    random = np.random.default_rng(1)
    truth = random.standard_normal((WIDTH, WIDTH), dtype=np.float32) / WIDTH ** 0.5
    weights = np.zeros_like(truth)
    began, done = time.monotonic(), 0
    for step in range(1, chosen.steps + 1):
        if follower:
            follower.poll()
        batch = random.standard_normal((BATCH, WIDTH), dtype=np.float32)
        error = batch @ weights - batch @ truth
        weights -= RATE * (batch.T @ error) / BATCH
        done += 1
        if time.monotonic() - began >= 1 or step == chosen.steps:
            rate = done / (time.monotonic() - began)
            used = max(pool["num_threads"] for pool in blas.info())
            print(f"{used} threads {rate:.1f} steps/s step {step} loss {float((error ** 2).mean()):.4f}", flush=True)
            began, done = time.monotonic(), 0


if __name__ == "__main__":
    main()
