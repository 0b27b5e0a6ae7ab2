# SPDX-License-Identifier: Apache-2.0
"""Manage a container's veth pair: one end is a port of a switch on the host, the other moves into the container.

The host's end carries a mark (the kernel's ``ifalias``) that names its owner, so that remains of a killed driver are
found from the host alone.
"""

import dataclasses
import shutil
from collections.abc import Mapping

from containerhost.errors import HostActionFailed
from containerhost.linux.poll import wait_until
from containerhost.linux.sysfs import Host
from containerhost.privileged import Privileged

DIRECTORY = "/sys/class/net"
RETURN_TIMEOUT = 10.0  # s for an interface to return from a stopped container


@dataclasses.dataclass(frozen=True)
class Pair:
    """Describe a veth pair between a switch of the host and one container.

    :ivar inner_end: the name on the host of the end that moves into the container, and returns under it
    :ivar mtu: bytes, of both ends; None is the kernel's default
    :ivar mark: its owner, in the driver's format; printable ASCII
    :ivar switched: a switch takes the frames; the host's own IP stack must not
    :ivar software_checksums: the switch is a program, which cannot offload checksums
    """

    host_end: str
    inner_end: str
    mac: str
    mark: str
    mtu: int | None = None
    switched: bool = True
    software_checksums: bool = False


@dataclasses.dataclass(frozen=True)
class Shape:
    """Hold the rate limits of one direction of a container's interface.

    :ivar rate: bytes per second, always allowed
    :ivar ceiling: bytes per second for a burst
    :ivar burst: bytes
    """

    rate: int
    ceiling: int
    burst: int


class Veths:
    def __init__(self, privileged: Privileged, host: Host | None = None) -> None:
        self._privileged = privileged
        self._host = host or Host()

    def ready(self, pair: Pair) -> bool:
        """Return whether the pair is complete, for a stopped container; one that just ended returns its end late."""
        return self.marks(pair) and wait_until(lambda: self.is_here(pair.inner_end), RETURN_TIMEOUT)

    def make(self, pair: Pair) -> None:
        """Create the pair, replacing the remains of an earlier one.

        :raises HostActionFailed: an interface of that name belongs to others
        """
        if self.is_here(pair.host_end) and not self._is_ours(pair):
            raise HostActionFailed(f"interface {pair.host_end} is on this host already and was not created for this "
                                   f"port (its alias is {self.mark(pair.host_end)!r}); remove it: ip link delete "
                                   f"{pair.host_end}")
        self.remove(pair.host_end)
        self._privileged.make_veth(pair.host_end, pair.inner_end, pair.mac, pair.mtu, pair.mark, pair.switched)
        if pair.software_checksums:
            self._privileged.compute_checksums(pair.inner_end)

    def _is_ours(self, pair: Pair) -> bool:
        """Return whether the interface is marked, or its driver was killed before marking it."""
        return self.marks(pair) or (self.mark(pair.host_end) is None and self.is_here(pair.inner_end))

    def remove(self, host_end: str) -> None:
        if self.is_here(shaper(host_end)):
            self._privileged.remove_shaper(shaper(host_end))
        if self.is_here(host_end):
            self._privileged.remove_veth(host_end)

    def marks(self, pair: Pair) -> bool:
        return self.mark(pair.host_end) == pair.mark

    def marked(self, beginning: str) -> Mapping[str, str]:
        """Return the marks of host ends that begin with ``beginning``."""
        found = {name: self.mark(name) for name in self._host.names(DIRECTORY)}
        return {name: mark for name, mark in found.items() if mark and mark.startswith(beginning)}

    def mark(self, name: str) -> str | None:
        return self._host.text(f"{DIRECTORY}/{name}/ifalias") or None

    def is_here(self, name: str) -> bool:
        """Return whether an interface is in the host's network namespace."""
        return self._host.is_directory(f"{DIRECTORY}/{name}")

    def set_up(self, host_end: str, up: bool) -> None:
        """Set the host end up or down; down, the container's end has no carrier."""
        self._privileged.set_link(host_end, up)

    def join(self, host_end: str, bridge: str) -> None:
        self._privileged.enslave(host_end, bridge)

    def shape(self, host_end: str, shape: Shape) -> None:
        """Limit the container's receive rate."""
        self._privileged.shape(host_end, shape.rate, shape.ceiling, shape.burst)

    def shape_sent(self, host_end: str, shape: Shape) -> None:
        """Limit its transmit rate, for a host end in a bridge or the host's IP stack."""
        self._privileged.shape_sent(host_end, shaper(host_end), shape.rate, shape.ceiling, shape.burst)

    def limit(self, host_end: str, received: Shape | None, sent: Shape | None) -> None:
        """Set the only limits of the container's receive and transmit rates. Idempotent."""
        if received:
            self.shape(host_end, received)
        elif shutil.which("tc"):  # without tc, no limit was set
            self._privileged.unshape(host_end)
        if sent:
            self.shape_sent(host_end, sent)
        elif self.is_here(shaper(host_end)):
            self._privileged.unshape_sent(host_end, shaper(host_end))

    def is_bridged(self, host_end: str) -> bool:
        """Return whether it is a port of a Linux bridge."""
        return self._host.is_directory(f"{DIRECTORY}/{host_end}/brport")


def shaper(host_end: str) -> str:
    """Return the name of the interface that limits what a container sends."""
    return f"ifb{host_end[3:]}"
