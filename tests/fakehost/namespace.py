# SPDX-License-Identifier: Apache-2.0
"""Build the private /sys, /proc and /dev of an emulated host: the machine's own, with the emulated hardware.

The kernel's own /sys and /proc stay mounted, untouched, below ``HOME``: the kernel lets a container in a user
namespace mount its own only where a complete one can be seen.
"""

import dataclasses
import os
import pathlib
import re
import shutil
import stat
from collections.abc import Iterable, Sequence

from tests.fakehost import linux, numa, pci, tree
from tests.fakehost.cgroups import Group
from tests.fakehost.description import DescriptionError, HostDescription, NumaNode
from tests.fakehost.entries import Writer
from tests.fakehost.functions import Function

HOME = "/sys/fakehost"
REAL_SYS = f"{HOME}/sys"
REAL_PROC = f"{HOME}/proc"
CONTROL = f"{HOME}/control"
BIN = f"{HOME}/bin"
REAL_IP = "/dev/fakehost-ip"  # Incus calls ip where a new sysfs covers /sys
ATTRIBUTES = f"{HOME}/attributes"
SCRATCH = f"{HOME}/scratch"
_STATE = ("/run/containerhost", "/run/onedriver", "/var/lib/containerhost")

LIMITS = pathlib.Path(__file__).parents[2] / "etc/sysctl/60-containerhost.conf"
_SHIM = pathlib.Path(__file__).parent / "shim"
_LOOPS = 64

# Directories that hold real and emulated entries side by side; the real ones are shown in them one by one.
_MERGED = (
    "",
    "bus",
    "bus/node",
    "bus/node/devices",
    "bus/pci",
    "class",
    "class/misc",
    "devices",
    "devices/system",
    "devices/system/cpu",
    "devices/virtual",
    "devices/virtual/misc",
    "module",
)
# Of this the real entries are shown as links, which take no mounts. Elsewhere a link from one entry to another would
# lead out of the emulated tree, and liblxc refuses to read the lists of CPUs through links.
_LINKED = ("module",)
# Of these only the emulated ones are shown.
_REPLACED = re.compile(
    r"bus/pci/(devices|drivers|drivers_probe|drivers_autoprobe|rescan|slots)"
    r"|bus/node/devices/node\d+|class/(drm|infiniband.*|kfd)|devices/system/(node|cpu/cpu\d+)|devices/virtual/(kfd|infiniband.*)"
    r"|(class|devices/virtual)/misc/rdma_cm|module/(nvidia.*|amdgpu|i915|xe|mlx5_core|igb|igbvf)"
)
_REPLACED_NODES = re.compile("dri|infiniband|kfd|kmsg|nvidia.*")


def fit(host: HostDescription) -> HostDescription:
    """The description with the machine's real cores and memory dealt out evenly to its nodes.

    Huge pages are told only up to a quarter of a node's memory, so that something is left on a small machine.

    :raises DescriptionError: a PCI bus of the description is one of the machine
    """
    real = REAL_SYS if os.path.exists(REAL_SYS) else "/sys"  # on an emulated host
    for device in (*host.gpus, *host.cards):
        bridge = pci.directory(device.address, device.switch).split("/")[2]
        if os.path.exists(f"{real}/devices/{bridge}"):
            raise DescriptionError(
                f"{host.name}: PCI bus {bridge[3:]} is one of this machine; use another for {device.address}"
            )
    cores, count = _real_cores(), len(host.nodes)
    memory = _real_memory() // count
    nodes = (
        NumaNode(
            tuple(cores[index * len(cores) // count : (index + 1) * len(cores) // count]),
            memory,
            tuple((size, min(pages, memory // 4 // size)) for size, pages in node.hugepages),
        )
        for index, node in enumerate(host.nodes)
    )
    return dataclasses.replace(host, nodes=tuple(nodes))


def _real_cores() -> list[tuple[int, ...]]:
    siblings = set()
    for path in pathlib.Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology/thread_siblings_list"):
        siblings.add(tuple(_parse_cpu_list(path.read_text())))
    return sorted(siblings) or [(cpu,) for cpu in range(os.cpu_count() or 1)]


def _parse_cpu_list(text: str) -> Iterable[int]:
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _real_memory() -> int:
    match = re.search(r"MemTotal:\s+(\d+) kB", pathlib.Path("/proc/meminfo").read_text())
    if not match:
        raise OSError("/proc/meminfo does not tell the machine's memory")
    return int(match[1]) * 1024


def enter(groups: Sequence[Group]) -> None:
    """Move this process, which must be single-threaded and alone in its PID namespace, into namespaces of its own."""
    for group in groups:
        group.enter()
    linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWNET | linux.CLONE_NEWCGROUP)
    for group in groups:
        group.settle()
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    linux.set_up("lo")


def build(host: HostDescription, present: list[Function], groups: Sequence[Group]) -> None:
    """Put private trees over /sys, /proc and /dev, with all in them that no single function brings."""
    ip_path, ip_program = _find_ip()
    linux.mount("proc", "/proc", "proc")
    _build_sys(groups)
    _build_proc(host, present)
    _build_dev()
    _build_state()
    _build_bin(ip_path, ip_program)


def _build_sys(groups: Sequence[Group]) -> None:
    with _Directory("/sys") as real_mounts:
        linux.mount("fakehost", "/sys", "tmpfs", data="mode=755")
        for directory, kind in ((REAL_SYS, "sysfs"), (REAL_PROC, "proc")):
            os.makedirs(directory)
            linux.mount(kind, directory, kind)
        for directory in _MERGED:
            os.makedirs(f"/sys/{directory}", exist_ok=True)
            for name in os.listdir(f"{REAL_SYS}/{directory}"):
                path = f"{directory}/{name}".lstrip("/")
                if path in _MERGED or _REPLACED.fullmatch(path):
                    continue
                if directory in _LINKED:
                    os.symlink(f"{REAL_SYS}/{path}", f"/sys/{path}")
                else:
                    _show(f"{real_mounts.path if path in ('fs', 'kernel') else REAL_SYS}/{path}", f"/sys/{path}")
        for group in groups:
            linux.unmount(group.mount)
            linux.bind(f"{real_mounts.path}{group.path.removeprefix('/sys')}", group.mount)
        # Engines search the mount table for hierarchies, and would find the real ones first.
        linux.unmount(f"{real_mounts.path}/fs/cgroup")
    for cpu in pathlib.Path(f"{REAL_SYS}/devices/system/cpu").glob("cpu[0-9]*"):
        mine = pathlib.Path("/sys/devices/system/cpu", cpu.name)
        mine.mkdir()
        for entry in cpu.iterdir():
            if entry.name != "topology" and not re.fullmatch(r"node\d+", entry.name):
                (mine / entry.name).symlink_to(entry)


class _Directory:
    """Keeps a directory reachable while something is mounted over it."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def __enter__(self) -> "_Directory":
        self._descriptor = os.open(self._directory, os.O_PATH | os.O_DIRECTORY)
        self.path = f"/proc/self/fd/{self._descriptor}"
        return self

    def __exit__(self, *exc_info: object) -> None:
        os.close(self._descriptor)


def _show(source: str, target: str) -> None:
    """Show a real file, directory or link at another place."""
    if os.path.islink(source):
        os.symlink(os.readlink(source), target)
        return
    if os.path.isdir(source):
        os.mkdir(target)
    else:
        os.close(os.open(target, os.O_CREAT, 0o600))
    linux.bind(source, target)


def _build_proc(host: HostDescription, present: list[Function]) -> None:
    os.makedirs(f"{SCRATCH}/driver")
    for name in os.listdir(f"{REAL_PROC}/driver"):
        if not name.startswith("nvidia"):
            os.symlink(f"{REAL_PROC}/driver/{name}", f"{SCRATCH}/driver/{name}")
    linux.bind(f"{SCRATCH}/driver", "/proc/driver")
    for name, make in (("devices", tree.devices_text), ("misc", tree.misc_text)):
        real = pathlib.Path(REAL_PROC, name).read_text()
        _cover(f"/proc/{name}", make(real, present))
    # A host that is configured: the file of this project is applied.
    for line in LIMITS.read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(" = ")
        path = f"/proc/sys/{name.replace('.', '/')}"
        if value and not name.startswith("#") and os.path.exists(path):
            _cover(path, f"{value}\n")
    _cover("/proc/cpuinfo", numa.placed_cpuinfo(pathlib.Path(f"{REAL_PROC}/cpuinfo").read_text(), host.nodes))


def _cover(path: str, text: str) -> None:
    mine = pathlib.Path(SCRATCH, os.path.basename(path))
    mine.write_text(text)
    mine.chmod(0o444)
    linux.bind(str(mine), path)


def _build_dev() -> None:
    with _Directory("/dev") as real:
        linux.mount("fakehost", "/dev", "tmpfs", data="mode=755")
        for name in os.listdir(real.path):
            status = os.lstat(f"{real.path}/{name}")
            if _REPLACED_NODES.fullmatch(name):
                continue
            if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
                _copy_node(f"/dev/{name}", status)
            else:
                _show(f"{real.path}/{name}", f"/dev/{name}")
    # The kernel makes the node of a new loop device in its own /dev only.
    for number in range(_LOOPS):
        path = f"/dev/loop{number}"
        if not os.path.exists(path):
            os.mknod(path, stat.S_IFBLK | 0o660, os.makedev(7, number))


def _build_state() -> None:
    """Give the host records of its own: what is tainted, held or mounted on one host is no other's business."""
    for directory in _STATE:
        os.makedirs(directory, exist_ok=True)
        linux.mount("fakehost", directory, "tmpfs", data="mode=755")


def _copy_node(path: str, status: os.stat_result) -> None:
    os.mknod(path, status.st_mode, status.st_rdev)
    os.chmod(path, stat.S_IMODE(status.st_mode))
    os.chown(path, status.st_uid, status.st_gid)


def show_kernel_log(attribute: str) -> None:
    """:param attribute: the file that stands for the kernel's log"""
    _show(attribute, "/dev/kmsg")


def show_vf_settings(attribute: str) -> None:
    """:param attribute: the file to which the ip command writes settings of VFs"""
    os.symlink(attribute, f"{HOME}/vf")


def _find_ip() -> tuple[str, bytes]:
    """Where the ip command is, and the program itself; on an emulated host on an emulated host it is the outer's."""
    found = shutil.which("ip", path="/usr/sbin:/usr/bin:/sbin:/bin")
    if found is None:
        raise FileNotFoundError("the ip command is missing; install iproute2")
    outer = pathlib.Path(REAL_IP)
    real = os.path.realpath(found)
    return real, (outer if outer.exists() else pathlib.Path(real)).read_bytes()


def _build_bin(ip_path: str, ip_program: bytes) -> None:
    """Put the commands in place that answer for hardware which the kernel does not have."""
    os.makedirs(BIN)
    real = pathlib.Path(REAL_IP)
    if not real.exists():  # shown by the outer host
        real.write_bytes(ip_program)
        real.chmod(0o755)
    linux.bind(str(_SHIM / "ip"), ip_path)
    shims = {name: name for name in ("ip.py", "nvidia-container-cli", "rdma", "rdma.py")}
    for name, shim in (shims | {"nvidia-smi": "host-nvidia-smi"}).items():
        os.symlink(_SHIM / shim, f"{BIN}/{name}")


def write_fixed(writer: Writer, host: HostDescription, present: list[Function]) -> None:
    writer.write(tree.fixed_entries(host, present))
    writer.write(numa.topology_entries(host.nodes))
