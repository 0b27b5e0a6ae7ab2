# SPDX-License-Identifier: Apache-2.0
"""Give containers cores of a host's sockets, as a kubelet or an engine with affinity does."""

from collections.abc import Sequence


class Sockets:
    """The free cores of one host.

    :param sizes: usable cores of each socket
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.free = list(sizes)

    def take(self, cores: int) -> list[int]:
        """Return the socket of each core, all on the socket with the most free cores if they fit there, or raise.

        :raises ValueError: so many are not free
        """
        if cores > sum(self.free):
            raise ValueError(f"{cores} cores of {sum(self.free)} free ones: the scheduler gave more than there is")
        taken = []
        left = cores
        for socket in sorted(range(len(self.free)), key=lambda at: (-self.free[at], at)):
            count = min(left, self.free[socket])
            self.free[socket] -= count
            taken += [socket] * count
            left -= count
        return taken

    def give(self, taken: Sequence[int]) -> None:
        """Free cores by the socket of each."""
        for socket in taken:
            self.free[socket] += 1
