# SPDX-License-Identifier: Apache-2.0
"""Run containerhost's root actions through oslo.privsep, so that nova-compute itself need not be root.

The daemon that oslo.privsep starts keeps only the capabilities below. It checks every argument once more, because
:class:`~containerhost.privileged.Privileged` does, and runs nothing but that class's actions.
"""

import os
from collections.abc import Collection, Mapping
from typing import Any

from oslo_privsep import capabilities, priv_context

from containerhost.errors import HostActionFailed
from containerhost.linux.sysfs import Host
from containerhost.privileged import Ids, Inside, Privileged


def of_this_machine(capability: int) -> list[int]:
    """Return the capabilities that root has here: in a container it may lack some, and the daemon would not start if
    they were requested."""
    bounding = next((line.split()[1] for line in Host().lines("/proc/self/status") if line.startswith("CapBnd:")), "0")
    return [capability] if int(bounding, 16) >> capability & 1 else []


context = priv_context.PrivContext(
    "nova_lxd_ext",
    cfg_section="lxd_privileged",
    pypath=f"{__name__}.context",
    capabilities=[
        capabilities.CAP_NET_ADMIN,        # interfaces: their making, addresses and names; GUIDs of VFs
        capabilities.CAP_SYS_ADMIN,        # binding drivers
        capabilities.CAP_DAC_OVERRIDE,     # attributes in /sys that only root may write
        capabilities.CAP_DAC_READ_SEARCH,  # and read
        capabilities.CAP_CHOWN,            # owners of block nodes in containers
        capabilities.CAP_FOWNER,           # and their modes
        capabilities.CAP_SYS_PTRACE,       # looking at what a container's processes see
        capabilities.CAP_SYS_CHROOT,       # acting among a container's mounts
        capabilities.CAP_KILL,             # ending the daemon's helpers that wait for a container
        capabilities.CAP_SETUID,           # as its root
        capabilities.CAP_SETGID,           # and its group
        *of_this_machine(capabilities.CAP_SYSLOG),        # the kernel's log, where only root may read it
        *of_this_machine(capabilities.CAP_SYS_RESOURCE),  # limits of processes that run
    ])

ACTIONS = frozenset(name for name in vars(Privileged) if not name.startswith("_"))


@context.entrypoint
def act(action: str, *arguments: Any) -> Any:
    """Run an action in the daemon; arguments and result cross as plain values. Of an OSError neither the file nor the
    action would cross, and its caller could take it for one of the daemon's connection."""
    if action not in ACTIONS:
        raise ValueError(f"{action!r} is none of the actions {', '.join(sorted(ACTIONS))}")
    try:
        return getattr(Privileged(), action)(*arguments)
    except OSError as error:
        raise HostActionFailed(f"{action} failed: {error}") from error


class Helper(Privileged):
    """The same actions, done by the daemon. What comes back as lists becomes the tuples it was."""

    def set_vf_guids(self, netdev: str, index: int, node_guid: str, port_guid: str) -> None:
        act("set_vf_guids", netdev, index, node_guid, port_guid)

    def set_vf_port(self, netdev: str, index: int, mac: str, vlan: int, spoof_check: bool | None = None,
                    trust: bool | None = None) -> None:
        act("set_vf_port", netdev, index, mac, vlan, spoof_check, trust)

    def set_vf_rate(self, netdev: str, index: int, rate: int) -> None:
        act("set_vf_rate", netdev, index, rate)

    def set_vf_link(self, netdev: str, index: int, up: bool) -> None:
        act("set_vf_link", netdev, index, up)

    def make_veth(self, host_end: str, inner_end: str, mac: str, mtu: int | None, mark: str, switched: bool) -> None:
        act("make_veth", host_end, inner_end, mac, mtu, mark, switched)

    def remove_veth(self, name: str) -> None:
        act("remove_veth", name)

    def set_link(self, name: str, up: bool) -> None:
        act("set_link", name, up)

    def enslave(self, name: str, bridge: str) -> None:
        act("enslave", name, bridge)

    def compute_checksums(self, name: str) -> None:
        act("compute_checksums", name)

    def shape(self, name: str, rate: int, ceiling: int, burst: int) -> None:
        act("shape", name, rate, ceiling, burst)

    def shape_sent(self, name: str, shaper: str, rate: int, ceiling: int, burst: int) -> None:
        act("shape_sent", name, shaper, rate, ceiling, burst)

    def unshape(self, name: str) -> None:
        act("unshape", name)

    def unshape_sent(self, name: str, shaper: str) -> None:
        act("unshape_sent", name, shaper)

    def remove_shaper(self, name: str) -> None:
        act("remove_shaper", name)

    def rename_netdev(self, name: str, new: str) -> None:
        act("rename_netdev", name, new)

    def link_down_and_flush(self, name: str) -> None:
        act("link_down_and_flush", name)

    def move_rdma(self, ibdev: str, pid: int) -> None:
        act("move_rdma", ibdev, pid)

    def unbind(self, address: str, driver: str) -> None:
        act("unbind", address, driver)

    def bind(self, address: str, driver: str) -> None:
        act("bind", address, driver)

    def reset(self, address: str) -> bool:
        return bool(act("reset", address))

    def reset_gpu(self, vendor: str, address: str, others: Collection[str] = ()) -> bool:
        return bool(act("reset_gpu", vendor, address, list(others)))

    def mark_reset(self, address: str, counters: Mapping[str, int]) -> None:
        act("mark_reset", address, dict(counters))

    def kernel_log(self) -> str:
        return str(act("kernel_log"))

    def stacked(self) -> list[tuple[int, tuple[str, ...]]]:
        return [(number, tuple(names)) for number, names in act("stacked")]

    def fetch_netdev(self, pid: int, name: str, host_name: str) -> None:
        act("fetch_netdev", pid, name, host_name)

    def remove_altnames(self, pid: int, name: str) -> None:
        act("remove_altnames", pid, name)

    def free_name(self, name: str) -> None:
        act("free_name", name)

    def forget_nodes(self, server: int, container: str, pid: int, known: Collection[str]) -> int:
        return int(act("forget_nodes", server, container, pid, list(known)))

    def fence_nodes(self, server: int, container: str, pid: int, leaving: Collection[str]) -> None:
        act("fence_nodes", server, container, pid, list(leaving))

    def restore_nodes(self, server: int, container: str, pid: int, modes: Mapping[str, int]) -> None:
        act("restore_nodes", server, container, pid, dict(modes))

    def end_helpers(self, pid: int) -> int:
        return int(act("end_helpers", pid))

    def end_copies(self, container: str) -> int:
        return int(act("end_copies", container))

    def users(self, nodes: Collection[tuple[int, int]]) -> tuple[str, ...]:
        return tuple(act("users", [list(node) for node in nodes]))

    def thaw_left(self) -> None:
        act("thaw_left")

    def fence_block(self, server: int, container: str, device: str, number: tuple[int, int]) -> None:
        act("fence_block", server, container, device, list(number))

    def restore_block(self, server: int, container: str, device: str, pid: int, number: tuple[int, int], mode: int
                      ) -> None:
        act("restore_block", server, container, device, pid, list(number), mode)

    def block_users(self, server: int, container: str, device: str, pid: int, number: tuple[int, int]
                    ) -> tuple[str, ...]:
        return tuple(act("block_users", server, container, device, pid, list(number)))

    def mount_memory(self, name: str, size: int) -> None:
        act("mount_memory", name, size)

    def make_memory_view(self, name: str) -> None:
        act("make_memory_view", name)

    def show_memory(self, name: str, ids: Ids | None) -> None:
        act("show_memory", name, ids)

    def unmount_memory(self, name: str) -> None:
        act("unmount_memory", name)

    def present_memories(self) -> tuple[str, ...]:
        return tuple(act("present_memories"))

    def raise_limits(self, pid: int, limits: Mapping[str, str]) -> None:
        act("raise_limits", pid, dict(limits))

    def bind_memory(self, pid: int, nodes: Collection[int]) -> None:
        act("bind_memory", pid, list(nodes))

    def apparent_size(self, server: int, pool: str, container: str, timeout: float) -> int | None:
        found = act("apparent_size", server, pool, container, timeout)
        return None if found is None else int(found)

    def copy_block(self, source: str, target: str, place: int, size: int) -> int:
        return int(act("copy_block", source, target, place, size))

    def read_guest_file(self, pid: int, name: str) -> bytes | None:
        found = act("read_guest_file", pid, name)
        return None if found is None else bytes(found)

    def write_guest_file(self, pid: int, name: str, content: bytes) -> None:
        act("write_guest_file", pid, name, content)

    def inside(self, pid: int) -> Inside:
        nodes, netdevs, limits = act("inside", pid)
        return Inside({path: tuple(numbers) for path, numbers in nodes.items()}, tuple(netdevs), limits)


def privileged() -> Privileged:
    """Return the root actions for this process: root acts itself, anybody else through the daemon."""
    return Privileged() if os.geteuid() == 0 else Helper()
