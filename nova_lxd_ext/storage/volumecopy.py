# SPDX-License-Identifier: Apache-2.0
"""Copying a block device to another, in pieces that each have a limit."""


from oslo_log import log as logging

from containerhost.errors import HostActionFailed
from containerhost.privileged import Privileged
from nova_lxd_ext.timelimit import within

LOG = logging.getLogger(__name__)

PIECE = 64 * 2**20  # bytes


class Copier:
    """:param limit: seconds that a piece of 64 MiB may take
    """

    def __init__(self, root: Privileged, limit: float) -> None:
        self._root = root
        self._limit = limit

    def copy(self, source: str, target: str) -> None:
        """:raises HostActionFailed: the target is smaller, or one of them cannot be read or written, or not in time
        """
        place = 0
        while copied := self._piece(source, target, place):
            place += copied
            LOG.debug("%s: %d bytes copied to %s", source, place, target)

    def _piece(self, source: str, target: str, place: int) -> int:
        what = f"Copying {source} to {target}"
        try:
            return within(self._limit, what, lambda: self._root.copy_block(source, target, place, PIECE))
        except TimeoutError as error:
            raise HostActionFailed(f"{what}: {error}") from error
