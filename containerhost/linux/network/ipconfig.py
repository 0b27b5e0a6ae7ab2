# SPDX-License-Identifier: Apache-2.0
"""Define an interface's IP configuration, in a separate module for the OCI runtime, whose start must be short."""

from typing import NamedTuple


class IpConfig(NamedTuple):
    """Describe the IP configuration that the host sets in the container before its first program runs.

    :ivar addresses: with the length of their prefix: ``10.0.0.5/24``
    :ivar gateways: default routers, at most one of each IP version
    :ivar metric: of the routes to them; None is the kernel's
    """

    addresses: tuple[str, ...] = ()
    gateways: tuple[str, ...] = ()
    metric: int | None = None
