#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train a small network with TensorFlow on the CPU, with as many threads as the container has cores.

    tensorflow_training.py [--rigid] [--steps N]

TensorFlow fixes the threads of a session when it makes it. At a change the session is closed, which ends its threads,
and a new one goes on from the checkpoint that it left in the working directory; so does this program when it is started
again.

Prints as numpy_training.py does. Ends with status 1 if the checkpoints have not counted each step once.
"""

import argparse
import os
import sys
import time
from pathlib import Path

os.environ["TF_OVERRIDE_GLOBAL_THREADPOOL"] = "1"  # else all sessions share the threads of the first one
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow.compat.v1 as tf  # which reads these variables
from containerhost_guest import Follower, threads

WIDTH, BATCH = 512, 256
CHECKPOINT = Path("tensorflow.checkpoint")


class Training:
    """Train in a session with some threads; another number makes another session.

    :ivar threads: those of the session
    """

    def __init__(self) -> None:
        tf.disable_eager_execution()
        tf.set_random_seed(1)
        batch = tf.random.normal((BATCH, WIDTH))
        truth = tf.random.stateless_normal((WIDTH, WIDTH), seed=(1, 1)) / WIDTH ** 0.5
        hidden, out = (tf.get_variable(name, initializer=tf.random.normal((WIDTH, WIDTH), stddev=WIDTH ** -0.5))
                       for name in ("hidden", "out"))
        self._step = tf.train.get_or_create_global_step()
        self._loss = tf.reduce_mean(tf.square(tf.nn.relu(batch @ hidden) @ out - batch @ truth))
        self._train = tf.train.MomentumOptimizer(0.05, 0.9).minimize(self._loss, global_step=self._step)
        self._begin = tf.global_variables_initializer()
        self._saver = tf.train.Saver(max_to_keep=1)
        self._session: tf.Session | None = None
        self.threads = 0

    def follow(self, number: int) -> None:
        """Have this many threads. What was trained stays."""
        if self._session and number == self.threads:
            return
        self.close()
        self._session = tf.Session(config=tf.ConfigProto(intra_op_parallelism_threads=number,
                                                         inter_op_parallelism_threads=1))
        self.threads = number
        if CHECKPOINT.with_name(f"{CHECKPOINT.name}.index").exists():
            self._saver.restore(self._session, str(CHECKPOINT))
        else:
            self._session.run(self._begin)

    def close(self) -> None:
        """Write a checkpoint, and end the session and its threads."""
        if self._session:
            self._saver.save(self._session, str(CHECKPOINT), write_meta_graph=False)
            self._session.close()
            self._session = None

    def step(self) -> float:
        """Train with one batch.

        :returns: the loss
        """
        return float(self._session.run((self._loss, self._train))[0])

    def steps(self) -> int:
        """Return how many steps there were, those before the checkpoint too."""
        return int(self._session.run(self._step))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rigid", action="store_true")
    options.add_argument("--steps", type=int, default=1 << 62)
    chosen = options.parse_args()
    training, follower = Training(), None
    if chosen.rigid:
        training.follow(len(os.sched_getaffinity(0)))
    else:
        follower = Follower(lambda resources: training.follow(threads(resources)))
    first = before = training.steps()
    began = time.monotonic()
    for step in range(first + 1, chosen.steps + 1):
        if follower:
            follower.poll()
        loss = training.step()
        seconds = time.monotonic() - began
        if seconds >= 1 or step == chosen.steps:
            print(f"{training.threads} threads {(step - before) / seconds:.1f} steps/s step {step} loss {loss:.4f}",
                  flush=True)
            began, before = time.monotonic(), step
    counted = training.steps()
    training.close()
    if counted != max(first, chosen.steps):
        sys.exit(f"{counted} steps were counted, not {chosen.steps}")


if __name__ == "__main__":
    main()
