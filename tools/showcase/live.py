# SPDX-License-Identifier: Apache-2.0
"""The chapter of the story in which a running server gains a GPU and a virtual function, and loses them again."""

import itertools
from collections.abc import Callable

from openstack.compute.v2.server import Server
from openstack.connection import Connection

from tools.showcase.inside import Guest
from tools.showcase.report import Report

PLAIN = "plain"
NAME = "notebook"
LONGEST_GAP = 5.0  # s between two numbers; a container that was stopped would begin anew


class Live:
    """:param create: makes a server of a name and a flavor
    :param settled: waits until a server of this id has one of these states
    """

    def __init__(self, admin: Connection, tenant: Connection, report: Report,
                 create: Callable[[str, str], Server], settled: Callable[[Server, set[str]], Server],
                 guest: Callable[[Server], Guest]) -> None:
        self._admin = admin
        self._tenant = tenant
        self._report = report
        self._create = create
        self._settled = settled
        self._guest = guest

    def tell(self, large: str) -> Server:
        """:param large: the flavor with a GPU and a virtual function
        :returns: the server, which runs and has its first flavor
        """
        self._report.chapter("A running server gains a GPU and a virtual function, and loses them")
        self._report.command(f"openstack flavor create {PLAIN} --vcpus 1 --ram 128 --disk 1")
        self._admin.compute.create_flavor(name=PLAIN, vcpus=1, ram=128, disk=1)
        server = self._settled(self._create(NAME, PLAIN), {"ACTIVE", "ERROR"})
        guest = self._guest(server)
        guest.start_counting()
        before = guest.device_nodes(), guest.life()
        self._report.check(NAME, "has no device, and a process in it counts", listed(before[0]), not before[0])
        self._resize(server, large)
        seen, interfaces = guest.device_nodes(), guest.interfaces()
        self._report.check(NAME, "has a GPU and an InfiniBand interface", listed(seen | interfaces),
                           interfaces == {"ib0"} and any("infiniband" in path for path in seen)
                           and any("infiniband" not in path for path in seen))
        self._went_on(guest, before[1])
        self._resize(server, PLAIN)
        seen, interfaces = guest.device_nodes(), guest.interfaces()
        self._report.check(NAME, "has neither any more", listed(seen | interfaces), not seen | interfaces)
        self._went_on(guest, before[1])
        return server

    def _resize(self, server: Server, flavor: str) -> None:
        self._report.command(f"openstack server resize --flavor {flavor} {NAME}")
        found = self._tenant.compute.find_flavor(flavor, ignore_missing=False)
        with self._report.timed(f"{NAME}, from request to {flavor}"):
            self._tenant.compute.resize_server(server, found.id)
            self._settled(server, {"VERIFY_RESIZE", "ERROR"})
        self._report.command(f"openstack server resize confirm {NAME}")
        self._tenant.compute.confirm_server_resize(server)
        self._settled(server, {"ACTIVE", "ERROR"})

    def _went_on(self, guest: Guest, before: str) -> None:
        counted = guest.counted()
        gaps = [later - earlier for (_, earlier), (_, later) in itertools.pairwise(counted)]
        numbers = [number for number, _ in counted]
        self._report.check(NAME, "its processes went on, and none of the numbers is missing",
                           f"{len(numbers)} numbers, at most {max(gaps):.2f} s between two",
                           numbers == list(range(1, len(numbers) + 1)) and max(gaps) < LONGEST_GAP
                           and guest.life() == before)


def listed(items: set[str]) -> str:
    return " ".join(sorted(items)) or "none"
