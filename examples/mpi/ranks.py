#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Print the container and the cores of each rank of an MPI job, after all ranks have exchanged data.

    mpirun --hostfile /etc/hpcjob/hostfile ranks.py
"""

import os
import socket

from mpi4py import MPI

SIZE = 1 << 20  # bytes that go from each rank to the next one


def main() -> None:
    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    received = bytearray(SIZE)
    world.Sendrecv(bytes([rank % 256]) * SIZE, (rank + 1) % size, recvbuf=received, source=(rank - 1) % size)
    exchanged = received == bytes([(rank - 1) % size % 256]) * SIZE
    cores = ",".join(str(core) for core in sorted(os.sched_getaffinity(0)))
    lines = world.gather(f"{rank} {socket.gethostname()} {cores} {'exchanged' if exchanged else 'LOST'}")
    total = world.allreduce(rank)
    if rank == 0:
        print("\n".join([*lines, f"{size} ranks, sum {total}"]))


if __name__ == "__main__":
    main()
