# SPDX-License-Identifier: Apache-2.0
"""NUMA nodes and CPUs: /sys/devices/system/{node,cpu} and /proc/cpuinfo.

Formats: kernel Documentation/ABI/stable/sysfs-devices-node and sysfs-devices-system-cpu.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from tests.fakehost.description import HostDescription, NumaNode
from tests.fakehost.entries import Directory, Entry, File, Link

NODE = "sys/devices/system/node"
CPU = "sys/devices/system/cpu"

_FEATURES = (
    "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat clflush mmx fxsr sse sse2 ht syscall nx rdtscp "
    "lm constant_tsc pni pclmulqdq ssse3 fma cx16 sse4_1 sse4_2 x2apic movbe popcnt aes xsave avx f16c rdrand bmi1 "
    "avx2 bmi2 avx512f avx512dq rdseed adx avx512cd sha_ni avx512bw avx512vl"
)


def cpu_list(cpus: Iterable[int]) -> str:
    """CPU numbers as the kernel lists them: ``0-3,8``."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def cpu_map(cpus: Iterable[int], width: int) -> str:
    """CPU numbers as the kernel's mask: groups of eight hexadecimal digits, the highest CPUs first."""
    mask = sum(1 << cpu for cpu in cpus)
    digits = f"{mask:0{(width + 3) // 4}x}"
    groups = []
    while digits:
        digits, group = digits[:-8], digits[-8:]
        groups.append(group)
    return ",".join(reversed(groups))


def node_entries(nodes: Sequence[NumaNode]) -> Iterator[Entry]:
    """The directory of every node, and the lists beside them."""
    everything = cpu_list(range(len(nodes)))
    width = 1 + max((cpu for node in nodes for cpu in node.cpus), default=0)
    for name in ("online", "possible", "has_memory", "has_normal_memory"):
        yield File(f"{NODE}/{name}", everything + "\n")
    yield File(f"{NODE}/has_cpu", cpu_list(number for number, node in enumerate(nodes) if node.cores) + "\n")
    for number, node in enumerate(nodes):
        directory = f"{NODE}/node{number}"
        yield Link(f"sys/bus/node/devices/node{number}", directory)
        yield File(f"{directory}/cpulist", cpu_list(node.cpus) + "\n")
        yield File(f"{directory}/cpumap", cpu_map(node.cpus, width) + "\n")
        distances = ("10" if other == number else "21" for other in range(len(nodes)))
        yield File(f"{directory}/distance", " ".join(distances) + "\n")
        yield File(f"{directory}/meminfo", _meminfo(number, node))
        counters = ("numa_hit", "numa_miss", "numa_foreign", "interleave_hit", "local_node", "other_node")
        yield File(f"{directory}/numastat", "".join(f"{counter} 0\n" for counter in counters))
        yield from (Link(f"{directory}/cpu{cpu}", f"{CPU}/cpu{cpu}") for cpu in node.cpus)
        yield Directory(f"{directory}/hugepages")
        for size, pages in node.hugepages:
            pool = f"{directory}/hugepages/hugepages-{size // 1024}kB"
            yield File(f"{pool}/nr_hugepages", f"{pages}\n", 0o644)
            yield File(f"{pool}/free_hugepages", f"{pages}\n")
            yield File(f"{pool}/surplus_hugepages", "0\n")


def _meminfo(number: int, node: NumaNode) -> str:
    total = node.memory // 1024
    reserved = sum(size * pages for size, pages in node.hugepages) // 1024
    free = max(0, (total - reserved) * 9 // 10)
    pages = sum(pages for _, pages in node.hugepages)
    values = (
        ("MemTotal", f"{total} kB"),
        ("MemFree", f"{free} kB"),
        ("MemUsed", f"{total - free} kB"),
        ("HugePages_Total", f"{pages}"),
        ("HugePages_Free", f"{pages}"),
        ("HugePages_Surp", "0"),
    )
    return "".join(f"Node {number} {name + ':':<15} {value:>10}\n" for name, value in values)


def topology_entries(nodes: Sequence[NumaNode]) -> Iterator[Entry]:
    """Per CPU: its place (``topology``) and its node; the part of a CPU's directory that differs from the real one."""
    width = 1 + max((cpu for node in nodes for cpu in node.cpus), default=0)
    for number, node in enumerate(nodes):
        for core, threads in enumerate(node.cores):
            for cpu in threads:
                yield Link(f"{CPU}/cpu{cpu}/node{number}", f"{NODE}/node{number}")
                values = {"physical_package_id": f"{number}", "die_id": "0", "core_id": f"{core}"}
                for names, cpus in (
                    (("thread_siblings", "core_cpus"), threads),
                    (("core_siblings", "package_cpus", "die_cpus"), node.cpus),
                ):
                    for name in names:
                        values[f"{name}_list"] = cpu_list(cpus)
                        values[name] = cpu_map(cpus, width)
                for name, value in values.items():
                    yield File(f"{CPU}/cpu{cpu}/topology/{name}", value + "\n")


def cpu_entries(nodes: Sequence[NumaNode]) -> Iterator[Entry]:
    """All of /sys/devices/system/cpu, for a tree that stands alone."""
    cpus = [cpu for node in nodes for cpu in node.cpus]
    for name in ("online", "present", "possible"):
        yield File(f"{CPU}/{name}", cpu_list(cpus) + "\n")
    yield File(f"{CPU}/offline", "\n")
    yield File(f"{CPU}/isolated", "\n")
    yield File(f"{CPU}/kernel_max", "8191\n")
    threads = any(len(core) > 1 for node in nodes for core in node.cores)
    yield File(f"{CPU}/smt/active", f"{int(threads)}\n")
    yield from topology_entries(nodes)


def cpuinfo(nodes: Sequence[NumaNode]) -> str:
    """/proc/cpuinfo for a tree that stands alone."""
    places = {
        cpu: (number, core, node)
        for number, node in enumerate(nodes)
        for core, threads in enumerate(node.cores)
        for cpu in threads
    }
    return "".join(
        f"processor\t: {cpu}\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n"
        f"model name\t: Intel(R) Xeon(R) Platinum 8480C\nstepping\t: 8\ncpu MHz\t\t: 2000.000\n"
        f"physical id\t: {number}\nsiblings\t: {len(node.cpus)}\ncore id\t\t: {core}\ncpu cores\t: {len(node.cores)}\n"
        f"flags\t\t: {_FEATURES}\n\n"
        for cpu, (number, core, node) in sorted(places.items())
    )


def placed_cpuinfo(real: str, nodes: Sequence[NumaNode]) -> str:
    """A machine's own /proc/cpuinfo with every CPU in the socket where the nodes put it."""
    places = {cpu: (number, node) for number, node in enumerate(nodes) for cpu in node.cpus}
    blocks = []
    for original in real.strip().split("\n\n"):
        block = original
        match = re.match(r"processor\s*: (\d+)", block)
        if match and int(match[1]) in places:
            number, node = places[int(match[1])]
            for key, value in (
                ("physical id", number),
                ("siblings", len(node.cpus)),
                ("cpu cores", len(node.cores)),
            ):
                block = re.sub(rf"^({key}\s*: ).*$", rf"\g<1>{value}", block, flags=re.MULTILINE)
        blocks.append(block)
    return "\n\n".join(blocks) + "\n\n"


def proc_entries(host: HostDescription) -> Iterator[Entry]:
    """The files of /proc that tell the state of a whole host, for a tree that stands alone."""
    total = sum(node.memory for node in host.nodes) // 1024
    cpus = sorted(cpu for node in host.nodes for cpu in node.cpus)
    ticks = "1000 0 500 8000 50 0 10 0 0 0"
    yield File("proc/cpuinfo", cpuinfo(host.nodes))
    yield File(
        "proc/meminfo",
        f"MemTotal:       {total} kB\nMemFree:        {total * 8 // 10} kB\nMemAvailable:   {total * 9 // 10} kB\n"
        "SwapTotal:      0 kB\nSwapFree:       0 kB\nHugepagesize:   2048 kB\n",
    )
    yield File("proc/stat", f"cpu  {ticks}\n" + "".join(f"cpu{cpu} {ticks}\n" for cpu in cpus) + "btime 1750000000\n")
    yield File("proc/uptime", "86400.25 600000.50\n")
    yield File("proc/loadavg", "0.25 0.50 0.75 2/512 4242\n")
