# SPDX-License-Identifier: Apache-2.0
"""Perform the actions that require root, in small steps: a driver without root replaces it with its helper.

Arguments are validated here, because a helper's caller may be less trusted: an invalid address, interface or GUID
never reaches a path or a command. Results are plain values, so that they can cross a process boundary.
"""

import os
import re
import stat
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from containerhost import vendors
from containerhost.devices.health import kernellog
from containerhost.devices.pci import ADDRESS
from containerhost.errors import HostActionFailed
from containerhost.linux import charnodes, cpuset, daemonhelpers, daemonnodes, freezer, guest_directory
from containerhost.linux import run as programs
from containerhost.linux.files import write_attribute
from containerhost.linux.network import links, stacked
from containerhost.linux.process import childprocess, deviceusers, processlimits
from containerhost.linux.process.namespaces import within
from containerhost.linux.process.processes import namespace, open_directory, table
from containerhost.linux.storage import apparentsize, blockcopy, blocknodes, memorymounts
from containerhost.linux.storage.idmounts import IdMap, IdRange
from containerhost.linux.sysfs import Host
from containerhost.vendors.kernellog import read as read_log

Ids = Sequence[Sequence[Sequence[int]]]  # ranges of user ids, then of group ids: inside, outside, count

PCI = "/sys/bus/pci"
COMMAND_TIMEOUT = 30  # s
DRIVER_TIMEOUT = 120.0  # s; the kernel waits 60 s for a function to be ready after its reset, and drivers load firmware

# `rdma` finds namespaces by the names of `ip netns`. A name would keep the namespace and its interfaces after the
# container's end, so it is made in a mount namespace that ends with the command, even if that is killed.
MOVE_RDMA = """mkdir -p /run/netns && mount -t tmpfs netns /run/netns
ip netns attach container "$1" && exec rdma dev set "$0" netns container"""

DEVICE_IN_PATH = re.compile(f"(?<=/devices/){ADDRESS.pattern}(?=/)")
DRIVER = re.compile(r"[A-Za-z0-9_-]{1,64}")
INTERFACE = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9_.-]{1,15}")
IBDEV = re.compile(r"[a-z][a-z0-9_]{0,62}")
GUID = re.compile(r"[0-9a-f]{4}(:[0-9a-f]{4}){3}")
MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
MARK = re.compile(r"[ -~]{1,200}")  # the kernel's limit is 255 bytes
LINK_STATES = re.compile("auto|enable|disable")
LIMIT = re.compile(r"[a-z]{1,16}")
SIZE = re.compile(r"unlimited|[0-9]{1,19}")
COUNTER = re.compile(r"[a-z_]{1,32}")
VOLUME = re.compile(r"/dev/(?!.*\.\.)[A-Za-z0-9_./-]{1,200}")

POOL = re.compile(r"(?!\.\.?\Z)[A-Za-z0-9_.-]{1,100}")
CONTAINER = re.compile(r"[A-Za-z0-9_-]{1,130}")  # with the prefix of its project

# Names in /proc/<pid>/limits and those of setrlimit(2), which engines use.
LIMITS = {
    "Max address space": "as", "Max core file size": "core", "Max cpu time": "cpu", "Max data size": "data",
    "Max file locks": "locks", "Max file size": "fsize", "Max locked memory": "memlock",
    "Max msgqueue size": "msgqueue", "Max nice priority": "nice", "Max open files": "nofile",
    "Max pending signals": "sigpending", "Max processes": "nproc", "Max realtime priority": "rtprio",
    "Max realtime timeout": "rttime", "Max resident set": "rss", "Max stack size": "stack",
}


class Inside(NamedTuple):
    """Describe what a container's first process sees.

    :ivar limits: hard limits by name: ``unlimited`` or a number
    """

    nodes: dict[str, tuple[int, int]]
    netdevs: tuple[str, ...]
    limits: dict[str, str]


class Privileged:
    """Act directly; the process must be root. A method without a docstring calls the function of its name.

    :raises HostActionFailed: from every method, with the message of the kernel or the tool
    """

    def set_vf_guids(self, netdev: str, index: int, node_guid: str, port_guid: str) -> None:
        """Set the GUIDs of VF ``index`` of the InfiniBand PF ``netdev``; its driver reads them at its next bind."""
        run(["ip", "link", "set", "dev", check(INTERFACE, netdev), "vf", str(int(index)),
             "node_guid", by_bytes(check(GUID, node_guid)), "port_guid", by_bytes(check(GUID, port_guid))])

    def set_vf_port(self, netdev: str, index: int, mac: str, vlan: int, spoof_check: bool | None = None,
                    trust: bool | None = None, qos: int = 0) -> None:
        """Set the MAC and VLAN (0 is none) that VF ``index`` of the PF ``netdev`` must use, whatever its holder sets.

        :param spoof_check, trust: None leaves it
        :param qos: the priority in the VLAN's tag, 0 to 7
        """
        switches = [word for key, value in (("spoofchk", spoof_check), ("trust", trust)) if value is not None
                    for word in (key, "on" if value else "off")]
        run(["ip", "link", "set", "dev", check(INTERFACE, netdev), "vf", str(int(index)),
             "mac", check(MAC, mac), "vlan", str(int(vlan)), "qos", str(int(qos)), *switches])

    def set_vf_rate(self, netdev: str, index: int, rate: int) -> None:
        """Limit the transmit rate of VF ``index`` of the PF ``netdev`` to ``rate`` Mbit/s; 0 is no limit."""
        run(["ip", "link", "set", "dev", check(INTERFACE, netdev), "vf", str(int(index)),
             "max_tx_rate", str(int(rate))])

    def set_vf_link(self, netdev: str, index: int, state: str) -> None:
        """Set the link of VF ``index`` of the PF ``netdev``: its card's, always up, or always down.

        :param state: of :data:`LINK_STATES`
        """
        run(["ip", "link", "set", "dev", check(INTERFACE, netdev), "vf", str(int(index)),
             "state", check(LINK_STATES, state)])

    def make_veth(self, host_end: str, inner_end: str, mac: str, mtu: int | None, mark: str, switched: bool) -> None:
        links.make_veth(check(INTERFACE, host_end), check(INTERFACE, inner_end), check(MAC, mac),
                        None if mtu is None else int(mtu), check(MARK, mark), bool(switched))

    def remove_veth(self, name: str) -> None:
        links.remove_veth(check(INTERFACE, name))

    def set_link(self, name: str, up: bool) -> None:
        links.set_up(check(INTERFACE, name), bool(up))

    def enslave(self, name: str, bridge: str) -> None:
        links.enslave(check(INTERFACE, name), check(INTERFACE, bridge))

    def compute_checksums(self, name: str) -> None:
        links.compute_checksums(check(INTERFACE, name))

    def shape(self, name: str, rate: int, ceiling: int, burst: int) -> None:
        """Limit what the host sends by an interface: bytes per second, the ceiling, and the burst in bytes."""
        run(["tc", "qdisc", "replace", "dev", check(INTERFACE, name), "root", "pfifo"])  # htb cannot replace htb
        run(["tc", "qdisc", "replace", "dev", name, "root", "handle", "1:", "htb", "default", "1"])
        run(["tc", "class", "replace", "dev", name, "parent", "1:", "classid", "1:1", "htb", "rate", f"{int(rate)}bps",
             "ceil", f"{int(ceiling)}bps", "burst", f"{int(burst)}b", "cburst", f"{int(burst)}b"])

    def shape_sent(self, name: str, shaper: str, rate: int, ceiling: int, burst: int) -> None:
        """Limit what the host receives by an interface, redirecting it to ``shaper``, whose sending is limited."""
        links.make_shaper(check(INTERFACE, shaper))
        self.shape(shaper, rate, ceiling, burst)
        run(["tc", "qdisc", "replace", "dev", check(INTERFACE, name), "ingress"])
        # A fixed handle replaces the filter if it exists.
        run(["tc", "filter", "replace", "dev", name, "parent", "ffff:", "protocol", "all", "prio", "1",
             "handle", "800::800", "u32", "match", "u32", "0", "0",
             "action", "mirred", "egress", "redirect", "dev", shaper])

    def unshape(self, name: str) -> None:
        """Remove the limit of what the host sends by an interface. Idempotent."""
        run(["tc", "qdisc", "replace", "dev", check(INTERFACE, name), "root", "noqueue"])

    def unshape_sent(self, name: str, shaper: str) -> None:
        """Remove the limit of what the host receives by an interface, with its shaper, after a failed try as well."""
        run(["tc", "qdisc", "replace", "dev", check(INTERFACE, name), "ingress"])  # that may have deleted it
        run(["tc", "qdisc", "delete", "dev", name, "ingress"])
        self.remove_shaper(shaper)

    def remove_shaper(self, name: str) -> None:
        links.remove_shaper(check(INTERFACE, name))

    def rename_netdev(self, name: str, new: str) -> None:
        links.rename(check(INTERFACE, name), check(INTERFACE, new))

    def link_down_and_flush(self, name: str) -> None:
        links.link_down_and_flush(check(INTERFACE, name))

    def move_rdma(self, ibdev: str, pid: int) -> None:
        """Move an RDMA device into the network namespace of process ``pid``.

        Only in exclusive mode, and only with drivers that can disconnect users of the device (mlx5, not rxe).
        """
        if namespace(int(pid)) in (None, namespace(os.getpid())):
            raise HostActionFailed(f"process {pid} is not that of a running container")
        try:
            programs.check(["unshare", "--mount", "sh", "-ec", MOVE_RDMA, check(IBDEV, ibdev), str(int(pid))],
                           COMMAND_TIMEOUT, "; ".join(programs.missing(("ip", "rdma"))) or "`rdma dev set` failed")
        except HostActionFailed as error:
            raise HostActionFailed(f"RDMA device {ibdev} cannot be moved into the network namespace of a container: "
                                   f"{error}. A host whose driver cannot do that must share RDMA devices: `rdma system "
                                   "set netns shared` while no container runs") from error

    def unbind(self, address: str, driver: str) -> None:
        write(f"{PCI}/drivers/{check(DRIVER, driver)}/unbind", check(ADDRESS, address))

    def bind(self, address: str, driver: str) -> None:
        write(f"{PCI}/drivers/{check(DRIVER, driver)}/bind", check(ADDRESS, address))

    def reset(self, address: str) -> bool:
        """Reset a function (Documentation/ABI/testing/sysfs-bus-pci); return False if the kernel offers no reset."""
        path = f"{PCI}/devices/{check(ADDRESS, address)}/reset"
        if not os.path.exists(path):
            return False
        write(path, "1")
        return True

    def reset_gpu(self, vendor: str, address: str, others: Collection[str] = ()) -> bool:
        """Reset a whole GPU under its driver by its vendor's method.

        :param vendor: name of the plug-in
        :param others: of :meth:`containerhost.vendors.base.Vendor.reset_with`
        :returns: False if the vendor, or this GPU, offers no reset
        """
        found = next((each for each in vendors.load() if each.name == vendor), None)
        if found is None:
            raise HostActionFailed(f"vendor plug-in {vendor!r} is not installed here")
        return found.reset_with(check(ADDRESS, address), [check(ADDRESS, other) for other in others])

    def mark_reset(self, address: str, counters: Mapping[str, int]) -> None:
        """Log the reset of a device in the kernel's log, which settles its earlier messages.

        :param counters: start values of its error counters
        """
        mark = kernellog.mark(check(ADDRESS, address), {check(COUNTER, counter): int(count)
                                                        for counter, count in counters.items()})
        try:
            write_attribute(kernellog.PATH, mark)
        except OSError as error:
            raise HostActionFailed(f"writing {mark} to {kernellog.PATH} failed: {error.strerror}") from error

    def kernel_log(self) -> str:
        """Return the kernel's messages about devices, for :func:`kernellog.restored` of another process."""
        return kernellog.plain(read_log(Host()))

    def stacked(self) -> list[tuple[int, tuple[str, ...]]]:
        """Return the items of :func:`containerhost.linux.network.stacked.elsewhere`."""
        return sorted(stacked.elsewhere().items())

    def fetch_netdev(self, pid: int, name: str, host_name: str) -> None:
        """Move an interface of the container of process ``pid`` to the host, if it has one of that name."""
        if check(INTERFACE, name) in links.names_in(network_of(pid)):
            links.fetch(name, network_of(pid), check(INTERFACE, host_name))

    def remove_altnames(self, pid: int, name: str) -> None:
        """Remove the alternative names of an interface of the container of process ``pid``. Idempotent."""
        within(network_of(pid), lambda: links.remove_altnames(check(INTERFACE, name)))

    def free_name(self, name: str) -> None:
        links.free_name(check(INTERFACE, name))

    def forget_nodes(self, server: int, container: str, pid: int, known: Collection[str]) -> int:
        return daemonnodes.forget(int(server), check(CONTAINER, container), int(pid), list(map(str, known)))

    def fence_nodes(self, server: int, container: str, pid: int, leaving: Collection[str]) -> None:
        daemonnodes.fence(int(server), check(CONTAINER, container), int(pid), list(map(str, leaving)))

    def restore_nodes(self, server: int, container: str, pid: int, modes: Mapping[str, int]) -> None:
        daemonnodes.restore(int(server), check(CONTAINER, container), int(pid),
                            {str(device): int(mode) & 0o666 for device, mode in modes.items()})

    def bind_cpus(self, pid: int, cpus: Collection[int]) -> None:
        cpuset.bind_cpus(int(pid), list(map(int, cpus)))

    def bind_memory(self, pid: int, nodes: Collection[int]) -> None:
        cpuset.bind_memory(int(pid), list(map(int, nodes)))

    def end_helpers(self, pid: int) -> int:
        return daemonhelpers.end(int(pid))

    def end_copies(self, container: str) -> int:
        return daemonhelpers.end_copies(check(CONTAINER, container))

    def users(self, nodes: Collection[tuple[int, int]]) -> tuple[str, ...]:
        return deviceusers.char_users([(int(major), int(minor)) for major, minor in nodes])

    def kill_frozen(self, pid: int) -> None:
        freezer.kill(int(pid))

    def thaw_left(self) -> None:
        freezer.thaw_left()

    def fence_block(self, server: int, container: str, device: str, number: tuple[int, int]) -> None:
        blocknodes.fence(int(server), check(CONTAINER, container), str(device), (int(number[0]), int(number[1])))

    def restore_block(self, server: int, container: str, device: str, pid: int, number: tuple[int, int], mode: int
                      ) -> None:
        blocknodes.restore(int(server), check(CONTAINER, container), int(pid), str(device),
                           (int(number[0]), int(number[1])), int(mode))

    def block_users(self, server: int, container: str, device: str, pids: Collection[int], number: tuple[int, int]
                    ) -> tuple[str, ...]:
        """Return the users of a container's block device, processes and mounts.

        :param pids: first processes of the containers that may use it, which are frozen meanwhile
        """
        numbers = (int(number[0]), int(number[1]))
        node = blocknodes.inode(int(server), check(CONTAINER, container), str(device), numbers)
        return deviceusers.users_in(list(map(int, pids)), lambda member: blocknodes.use(member, node, numbers))

    def apparent_size(self, server: int, pool: str, container: str, timeout: float) -> int | None:
        return apparentsize.measure(int(server), check(POOL, pool), check(CONTAINER, container), float(timeout))

    def copy_block(self, source: str, target: str, place: int, size: int) -> int:
        """Copy a piece of a block device of the host to another."""
        return blockcopy.copy(check(VOLUME, source), check(VOLUME, target), int(place), int(size))

    def mount_memory(self, name: str, size: int) -> None:
        memorymounts.mount(check(memorymounts.MEMORY, name), int(size))

    def make_memory_view(self, name: str) -> None:
        memorymounts.make_view(check(memorymounts.VIEW, name))

    def show_memory(self, name: str, ids: Ids | None) -> None:
        """Call :func:`containerhost.linux.storage.memorymounts.show`.

        :param ids: the numbers of an IdMap
        """
        memorymounts.show(check(memorymounts.VIEW, name), None if ids is None else id_map(ids))

    def unmount_memory(self, name: str) -> None:
        memorymounts.unmount(check(memorymounts.ANY, name))

    def present_memories(self) -> tuple[str, ...]:
        return memorymounts.present()

    def raise_limits(self, pid: int, limits: Mapping[str, str]) -> None:
        processlimits.at_least(int(pid), {check(LIMIT, name): check(SIZE, size) for name, size in limits.items()})

    def read_guest_file(self, pid: int, name: str) -> bytes | None:
        return guest_directory.read(int(pid), str(name))

    def write_guest_file(self, pid: int, name: str, content: bytes) -> None:
        guest_directory.write(int(pid), str(name), bytes(content))

    def inside(self, pid: int) -> Inside:
        directories = vendors.node_directories()
        return Inside(childprocess.run(int(pid), lambda: nodes_of(int(pid), directories),
                                       f"cannot read directories of process {int(pid)}"),
                      netdevs_of(int(pid)), limits_of(int(pid)))


def id_map(ids: Ids) -> IdMap:
    uids, gids = (tuple(IdRange(*map(int, each)) for each in ranges) for ranges in ids)
    return IdMap(uids, gids)


def network_of(pid: int) -> str:
    """Return the file of a container's network namespace; never the host's own."""
    charnodes.require_container(int(pid))
    return f"/proc/{int(pid)}/ns/net"


def check(pattern: re.Pattern[str], text: str) -> str:
    if not pattern.fullmatch(text):
        raise HostActionFailed(f"{text!r} is not a valid argument of this action ({pattern.pattern})")
    return text


def by_bytes(guid: str) -> str:
    """Convert ``b8ce:f603:0001:0000``, of sysfs, to ``b8:ce:f6:03:00:01:00:00``, which iproute2 reads."""
    return ":".join(re.findall("..", guid.replace(":", "")))


def run(command: list[str], timeout: int = COMMAND_TIMEOUT) -> None:
    """Run a command.

    :raises HostActionFailed: it cannot be run, failed, or did not end within ``timeout`` seconds
    """
    programs.check(command, timeout, f"`{' '.join(command)}` failed")


def write(path: str, text: str) -> None:
    """Write an attribute of a device in a child process: a driver that hangs holds neither the caller nor its locks.

    See :func:`containerhost.linux.process.childprocess.run_for_device`.

    :raises HostActionFailed: with the kernel's message, or after DRIVER_TIMEOUT
    """
    found = ADDRESS.fullmatch(text) or DEVICE_IN_PATH.search(path)
    childprocess.run_for_device(found[0] if found else os.path.basename(path), lambda: write_attribute(path, text),
                                f"writing {text} to {path} failed", DRIVER_TIMEOUT)


def nodes_of(pid: int, directories: Collection[tuple[str, ...]]) -> dict[str, tuple[int, int]]:
    """Return the character nodes in directories of /dev."""
    found = {}
    for directory in directories:
        fd = open_directory(pid, ("dev", *directory))
        if fd is None:
            continue
        try:
            for entry in os.listdir(fd):
                try:
                    status = os.stat(entry, dir_fd=fd, follow_symlinks=False)
                except FileNotFoundError:  # the tenant may remove files at any time
                    continue
                if stat.S_ISCHR(status.st_mode):
                    found["/".join(("/dev", *directory, entry))] = (os.major(status.st_rdev), os.minor(status.st_rdev))
        except OSError as error:
            raise HostActionFailed(f"cannot read /dev of process {pid}: {error.strerror}") from error
        finally:
            os.close(fd)
    return found


def netdevs_of(pid: int) -> tuple[str, ...]:
    """Return the interfaces from /proc/<pid>/net/dev: two lines of headings, then ``name: counters``."""
    return tuple(line.partition(":")[0].strip() for line in lines(pid, "net/dev")[2:])


def limits_of(pid: int) -> dict[str, str]:
    """Return the hard limits from /proc/<pid>/limits: name, soft, hard, unit, in columns of 26 and 21 letters."""
    return {LIMITS[line[:26].strip()]: line[47:68].strip() for line in lines(pid, "limits")
            if line[:26].strip() in LIMITS}


def lines(pid: int, file: str) -> list[str]:
    try:
        return table(pid, file)
    except OSError as error:
        raise HostActionFailed(f"cannot inspect process {pid}: {error.strerror}") from error
