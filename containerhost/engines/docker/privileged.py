# SPDX-License-Identifier: Apache-2.0
"""Perform the root actions on running containers that are specific to Docker."""

import re

from containerhost import vendors
from containerhost.engines.docker import frozen
from containerhost.engines.docker.ociruntime import NODE_MODE
from containerhost.engines.spec import IpConfig
from containerhost.linux import charnodes
from containerhost.linux.network import addresses, links
from containerhost.linux.process import commandtree
from containerhost.linux.sysfs import Host
from containerhost.privileged import INTERFACE, Privileged, check, network_of

CONTAINER_ID = re.compile(r"[0-9a-f]{64}")
COMMAND_MARK = re.compile(r"[0-9a-f]{32}")


def char_node() -> re.Pattern[str]:
    """Return the pattern of paths of the nodes that a vendor's device can have."""
    directories = "|".join(re.escape("/".join(directory)) + "/" for directory in vendors.node_directories()
                           if directory)
    return re.compile(rf"/dev/({directories})?(?!\.{{1,2}}$)[A-Za-z0-9_.-]{{1,64}}")


class DockerPrivileged(Privileged):
    """Act directly; the process must be root.

    :raises HostActionFailed: from every method, with the kernel's message
    """

    def give_node(self, pid: int, path: str, number: tuple[int, int]) -> None:
        """Create a character node in the container of process ``pid``."""
        charnodes.give(int(pid), check(char_node(), path), (int(number[0]), int(number[1])), NODE_MODE)

    def allow_node(self, pid: int, number: tuple[int, int]) -> None:
        """Permit the container of process ``pid`` to open a character node that it has."""
        charnodes.require_container(int(pid))
        charnodes.permit(int(pid), (int(number[0]), int(number[1])), True)

    def take_node(self, pid: int, path: str, number: tuple[int, int]) -> None:
        charnodes.take(int(pid), check(char_node(), path), (int(number[0]), int(number[1])))

    def move_in_netdev(self, pid: int, host_name: str, name: str) -> None:
        """Move an interface of the host into the container of process ``pid``."""
        links.move_in(check(INTERFACE, host_name), network_of(pid), check(INTERFACE, name))

    def set_addresses(self, pid: int, name: str, setup: IpConfig, before: IpConfig | None) -> None:
        """Call :func:`containerhost.linux.network.addresses.apply`."""
        addresses.apply(network_of(pid), check(INTERFACE, name), setup, before)

    def thaw(self, container: str) -> None:
        """Thaw the processes of a container that the kernel has frozen.

        :param container: Docker's id
        """
        if group := frozen.freezer(Host(), check(CONTAINER_ID, container)):
            group.thaw()

    def end_command(self, pid: int, first: int, mark: str) -> None:
        """Call :func:`containerhost.linux.process.commandtree.end`."""
        commandtree.end(int(pid), int(first), check(COMMAND_MARK, mark))
