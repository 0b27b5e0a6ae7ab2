# SPDX-License-Identifier: Apache-2.0
"""Run containerhost's root actions through oslo.privsep, so that nova-compute need not run as root.

The daemon that oslo.privsep starts keeps only the capabilities below. It runs only the actions of
:class:`~containerhost.privileged.Privileged`, which validates every argument.
"""

import functools
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

from oslo_privsep import capabilities, priv_context

from containerhost.errors import HostActionFailed
from containerhost.linux.sysfs import Host
from containerhost.privileged import Inside, Privileged


def of_this_machine(capability: int) -> list[int]:
    """Return root's capabilities on this machine: the daemon would not start with others, as in a container."""
    bounding = next((line.split()[1] for line in Host().lines("/proc/self/status") if line.startswith("CapBnd:")), "0")
    return [capability] if int(bounding, 16) >> capability & 1 else []


context = priv_context.PrivContext(
    "nova_lxd_ext",
    cfg_section="lxd_privileged",
    pypath=f"{__name__}.context",
    capabilities=[
        capabilities.CAP_NET_ADMIN,        # interfaces: creation, addresses and names; GUIDs of VFs
        capabilities.CAP_SYS_ADMIN,        # driver binding
        capabilities.CAP_DAC_OVERRIDE,     # writing attributes in /sys
        capabilities.CAP_DAC_READ_SEARCH,  # reading attributes in /sys
        capabilities.CAP_CHOWN,            # owners of block nodes in containers
        capabilities.CAP_FOWNER,           # modes of block nodes in containers
        capabilities.CAP_SYS_PTRACE,       # access to a container's processes through /proc
        capabilities.CAP_SYS_CHROOT,       # access to a container's mounts
        capabilities.CAP_KILL,             # killing the daemon's helpers that block a container
        capabilities.CAP_SETUID,           # acting as the container's root
        capabilities.CAP_SETGID,           # and its group
        *of_this_machine(capabilities.CAP_SYSLOG),        # reading a restricted kernel log
        *of_this_machine(capabilities.CAP_SYS_RESOURCE),  # limits of running processes
    ])

ACTIONS = frozenset(name for name in vars(Privileged) if not name.startswith("_"))


@context.entrypoint
def act(action: str, *arguments: Any, **named: Any) -> Any:
    """Run an action in the daemon; arguments and result are passed as plain values.

    An OSError would lose its file and action, and the caller could confuse it with one of the daemon's connection."""
    if action not in ACTIONS:
        raise ValueError(f"{action!r} is not one of the actions {', '.join(sorted(ACTIONS))}")
    try:
        return getattr(Privileged(), action)(*arguments, **named)
    except OSError as error:
        raise HostActionFailed(f"{action} failed: {error}") from error


class Helper(Privileged):
    """Run the root actions in the daemon of oslo.privsep."""

    def stacked(self) -> list[tuple[int, tuple[str, ...]]]:
        return [(number, tuple(names)) for number, names in act("stacked")]

    def inside(self, pid: int) -> Inside:
        nodes, netdevs, limits = act("inside", pid)
        return Inside({path: tuple(numbers) for path, numbers in nodes.items()}, tuple(netdevs), limits)


def forwarding(action: str) -> Callable[..., Any]:
    """Return a method that runs an action in the daemon. A tuple that was passed as a list is restored."""
    @functools.wraps(getattr(Privileged, action))
    def forward(self: Helper, *arguments: Any, **named: Any) -> Any:
        found = act(action, *map(plain, arguments), **{key: plain(value) for key, value in named.items()})
        return tuple(found) if isinstance(found, list) else found

    return forward


def plain(argument: Any) -> Any:
    """Return an argument of an action as it can be passed: a mapping as dict, another collection as list."""
    if isinstance(argument, Mapping):
        return dict(argument)
    return list(argument) if isinstance(argument, Collection) and not isinstance(argument, str | bytes) else argument


for _action in ACTIONS - vars(Helper).keys():
    setattr(Helper, _action, forwarding(_action))


def privileged() -> Privileged:
    """Return the root actions for this process: direct ones for root, otherwise by the daemon."""
    return Privileged() if os.geteuid() == 0 else Helper()
