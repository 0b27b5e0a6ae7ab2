#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train a small network with PyTorch on the CPU, with as many threads as the container has cores.

    torch_training.py [--rigid] [--steps N]

Prints as numpy_training.py does.
"""

import argparse
import time

import torch
from containerhost_guest import Follower, threads

WIDTH, BATCH = 512, 256


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rigid", action="store_true")
    options.add_argument("--steps", type=int, default=1 << 62)
    chosen = options.parse_args()
    follower = None if chosen.rigid else Follower(lambda resources: torch.set_num_threads(threads(resources)))
    torch.manual_seed(1)
    truth = torch.nn.Linear(WIDTH, WIDTH)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    began, done = time.monotonic(), 0
    for step in range(1, chosen.steps + 1):
        if follower:
            follower.poll()
        batch = torch.randn(BATCH, WIDTH)
        loss = torch.nn.functional.mse_loss(model(batch), truth(batch).detach())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done += 1
        if time.monotonic() - began >= 1 or step == chosen.steps:
            rate = done / (time.monotonic() - began)
            used = torch.get_num_threads()
            print(f"{used} threads {rate:.1f} steps/s step {step} loss {loss.item():.4f}", flush=True)
            began, done = time.monotonic(), 0


if __name__ == "__main__":
    main()
