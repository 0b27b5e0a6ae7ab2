# SPDX-License-Identifier: Apache-2.0
"""Find this host's record in nova's database."""

import functools

from nova import context as nova_context
from nova import objects


class ComputeNode:
    """Look up the id of this host's compute node.

    :param host: nova's name of this host, which is its only node too
    """

    def __init__(self, host: str) -> None:
        self._host = host

    @functools.cached_property
    def id(self) -> int:
        """Return the compute node's id, asked of nova once.

        :raises ComputeHostNotFound: nova-compute has not yet made the record
        """
        context = nova_context.get_admin_context()
        return int(objects.ComputeNode.get_by_host_and_nodename(context, self._host, self._host).id)
