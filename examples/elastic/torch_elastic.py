#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train a small network by as many workers of torch.distributed (gloo, on the CPU) as the container has cores.

    containerhost-guest follow -- torch_elastic.py STEPS

PyTorch's elastic agent, which torchrun is too, starts the workers, and starts them again if one dies. At each change
``follow`` sends SIGTERM: the workers agree on the step before which they end, the first one writes a checkpoint, and as
many as there are cores then go on from it. A step has the same batch whatever their number, and each trains with its
part of it. After a death they begin again at the last checkpoint.

Prints as torch_training.py does, and "N workers: steps FIRST-LAST" of each part. Ends with status 1 if the optimizer
has not counted each step once, or if the workers together have not had each sample once. The checkpoint is in the
working directory.
"""

import signal

ending: list[int] = []
if __name__ == "__mp_main__":  # a worker; now, because the import of PyTorch takes seconds
    signal.signal(signal.SIGTERM, lambda number, _: ending.append(number))

import os  # noqa: E402 (after the signal)
import sys  # noqa: E402
import time  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402
from torch import distributed  # noqa: E402
from torch.distributed.elastic.multiprocessing.api import SignalException  # noqa: E402
from torch.distributed.launcher.api import LaunchConfig, elastic_launch  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

WIDTH, BATCH = 512, 240
CHECKPOINT = Path("checkpoint.pt")
STORE = "127.0.0.1:29500"  # where the workers find each other
RESTARTS = 3  # after deaths of workers


class Training:
    def __init__(self) -> None:
        self.rank, self.workers = distributed.get_rank(), distributed.get_world_size()
        torch.manual_seed(1)
        self._truth = torch.nn.Linear(WIDTH, WIDTH)
        network = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH))
        self._optimizer = torch.optim.Adam(network.parameters())
        self.step = self._samples = 0
        if CHECKPOINT.exists():
            kept = torch.load(CHECKPOINT)
            network.load_state_dict(kept["network"])
            self._optimizer.load_state_dict(kept["optimizer"])
            self.step, self._samples = kept["step"], kept["samples"]
        self._model = DistributedDataParallel(network)

    def agreed_to_end(self) -> bool:
        """Return whether one of the workers was told to end, and count the samples that the next step will have."""
        numbers = torch.arange(self.step * BATCH, (self.step + 1) * BATCH)[self.rank::self.workers]
        told = torch.tensor([len(ending), int(numbers.sum())])
        distributed.all_reduce(told)
        if told[0]:
            return True
        self._samples += int(told[1])
        return False

    def train(self) -> float:
        """Do a step with this worker's part of its batch.

        :returns: the loss of the part
        """
        random = torch.Generator().manual_seed(self.step)
        batch = torch.randn(BATCH, WIDTH, generator=random)[self.rank::self.workers]
        loss = torch.nn.functional.mse_loss(self._model(batch), self._truth(batch).detach(), reduction="sum")
        self._optimizer.zero_grad()
        (loss * self.workers / (BATCH * WIDTH)).backward()  # the workers' mean is that of the whole batch
        self._optimizer.step()
        self.step += 1
        return loss.item() / batch.numel()

    def save(self) -> None:
        """Write a checkpoint. It is the earlier one or complete, whenever this process ends."""
        state = {"network": self._model.module.state_dict(), "optimizer": self._optimizer.state_dict(),
                 "step": self.step, "samples": self._samples}
        unfinished = CHECKPOINT.with_suffix(".new")
        torch.save(state, unfinished)
        os.replace(unfinished, CHECKPOINT)

    def complaint(self) -> str:
        """Compare what the optimizer and the workers counted with the steps; "" if each was done once."""
        updates = {int(state["step"]) for state in self._optimizer.state.values()} or {0}
        samples = self.step * BATCH
        if updates != {self.step} or self._samples != samples * (samples - 1) // 2:
            return f"step {self.step}, but {updates} updates and a sum of samples of {self._samples}"
        return ""


def work(steps: int) -> None:
    """Train as one of the workers, until all steps are done or the workers agree to end."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    training = Training()
    first = before = training.step
    began = time.monotonic()
    while training.step < steps and not training.agreed_to_end():
        loss = training.train()
        seconds = time.monotonic() - began
        if training.rank == 0 and (seconds >= 1 or training.step == steps):
            print(f"{training.workers} workers {(training.step - before) / seconds:.1f} steps/s step {training.step} "
                  f"loss {loss:.4f}", flush=True)
            began, before = time.monotonic(), training.step
    if complaint := training.complaint():
        raise RuntimeError(complaint)
    if training.rank == 0:
        training.save()
        print(f"{training.workers} workers: steps {first}-{training.step}", flush=True)
    distributed.destroy_process_group()
    if training.step < steps:
        sys.exit(128 + signal.SIGTERM)  # a worker that returns waits until the agent has taken its result, which ends


def main() -> None:
    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=int(os.environ["OMP_NUM_THREADS"]),
                          max_restarts=RESTARTS, run_id="1", rdzv_backend="static", rdzv_endpoint=STORE,
                          rdzv_configs={"rank": 0})
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a container's name need not be that of an address
    try:
        elastic_launch(config, work)(int(sys.argv[1]))
    except SignalException as ended:
        sys.exit(128 + ended.sigval)


if __name__ == "__main__":
    main()
