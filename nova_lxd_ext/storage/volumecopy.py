# SPDX-License-Identifier: Apache-2.0
"""Copy a block device to another, in pieces that each have a timeout."""


from oslo_log import log as logging

from containerhost.errors import HostActionFailed
from containerhost.linux.process.timelimit import within
from containerhost.privileged import Privileged

LOG = logging.getLogger(__name__)

PIECE = 64 * 2**20  # bytes


class Copier:
    """Copy a volume's data to the volume that replaces it.

    :param timeout: seconds that a piece of 64 MiB may take
    """

    def __init__(self, root: Privileged, timeout: float) -> None:
        self._root = root
        self._timeout = timeout

    def copy(self, source: str, target: str) -> None:
        """Copy a block device to another.

        :raises HostActionFailed: the target is smaller, or a read or write fails or times out
        """
        place = 0
        while copied := self._piece(source, target, place):
            place += copied
            LOG.debug("%s: %d bytes copied to %s", source, place, target)

    def _piece(self, source: str, target: str, place: int) -> int:
        what = f"Copying {source} to {target}"
        try:
            return within(self._timeout, what, lambda: self._root.copy_block(source, target, place, PIECE))
        except TimeoutError as error:
            raise HostActionFailed(f"{what}: {error}") from error
