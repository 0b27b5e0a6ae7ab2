# SPDX-License-Identifier: Apache-2.0
"""Fetch a container of LXD in rounds on its destination of a live migration."""

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any

from containerhost.engines.capabilities import ChangesOffer, Transfers
from containerhost.engines.spec import ContainerSpec
from lxdone import translate
from onedriver.actions import Call
from onedriver.errors import DriverError, NotSupported
from onedriver.node import livemigration
from onedriver.vm import Vm

OPERATION = re.compile(r"[0-9a-f-]{1,64}")


def require_allowed(vm: Vm, address: str) -> None:
    """Refuse a VM that cannot leave, with the remedy, before any change.

    :param address: address at which other nodes fetch containers from this one
    """
    livemigration.require_allowed(vm, translate.LIVE_MIGRATION)
    if not address:
        raise NotSupported("use onevm migrate without --live, or set migration_address of /etc/lxdone.toml, the https "
                           "address of this node's LXD")


class Destination(livemigration.Destination):
    def fetch_changes(self, offer: ChangesOffer) -> None:
        """Make it fetch the container, or its changes since the former offer."""
        self.ask({"offer": dataclasses.asdict(offer)})


Connect = Callable[[Call], AbstractContextManager[Destination]]


class Arrival:
    """Fetch a VM's container on its destination, and start it.

    :param spec: of the container until it starts
    :param peers: addresses to fetch from; oneadmin, who names one, is not root, and LXD trusts what it fetches
    :param timeout: seconds that one round of copying may take
    :param take_over: takes the root from the source, and starts the VM
    """

    def __init__(self, transfers: Transfers, spec: ContainerSpec, peers: Collection[str], timeout: int,
                 take_over: Callable[[], None]) -> None:
        self._transfers = transfers
        self._spec = spec
        self._peers = peers
        self._timeout = timeout
        self._take_over = take_over
        self._refresh = False

    def fetch(self, request: Mapping[str, Any]) -> None:
        match request:
            case {"offer": dict(offer)}:
                self.fetch_changes(checked(offer))
            case _:
                raise livemigration.unsupported(request)

    def fetch_changes(self, offer: ChangesOffer) -> None:
        """Fetch the container, or its changes since the former offer."""
        address, _, operation = offer.operation.partition("/1.0/operations/")
        if address not in self._peers or not OPERATION.fullmatch(operation):
            raise NotSupported("use onevm migrate without --live, or add to migration_peers of /etc/lxdone.toml of "
                               f"this node {address[:200]}")
        if not self._transfers.takes_changes(self._spec, offer):
            raise NotSupported("use onevm migrate without --live: storage pool "
                               f"{self._spec.root.pool} of this node does not take differences of a pool of type "
                               f"{offer.pool_type}; both must be of that type")
        self._transfers.fetch_changes(self._spec, offer, self._timeout, refresh=self._refresh)
        self._refresh = True

    def start(self) -> None:
        self._transfers.drop_snapshots(self._spec.name)
        self._take_over()


def checked(offer: dict[str, Any]) -> ChangesOffer:
    """Return the offer of a request; raise DriverError if it is malformed."""
    kinds = {field.name: dict if field.name in ("config", "secrets") else str
             for field in dataclasses.fields(ChangesOffer)}
    if offer.keys() != kinds.keys() or not all(isinstance(offer[name], kind) for name, kind in kinds.items()):
        raise DriverError(f"the source sends a malformed offer, with {', '.join(sorted(offer))[:200]}")
    return ChangesOffer(**offer)
