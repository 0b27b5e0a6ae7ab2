# SPDX-License-Identifier: Apache-2.0
"""Looking from inside a server: every question is a command of the guest's own shell."""

from tools.cloud.engine import Engine, Output

# Device nodes that accelerators and network cards have; the rest of /dev is every container's.
DIRECTORIES = "find /dev -type c ( -name nvidia* -o -path /dev/dri/* -o -path /dev/infiniband/* -o -name kfd )"

COUNT = """echo $$ > /root/counter; i=0
while :; do i=$((i+1)); echo $i $(cut -d' ' -f1 /proc/uptime) >> /root/numbers; sleep 0.1; done"""

START = """setsid sh -c "$0" > /dev/null 2>&1 < /dev/null &
until [ -s /root/numbers ]; do sleep 0.1; done"""


class Guest:
    """:param name: the container's name"""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self.name = name

    def device_nodes(self) -> set[str]:
        return set(self._inside(*DIRECTORIES.split()).out.split())

    def interfaces(self) -> set[str]:
        return set(self._inside("ls", "/sys/class/net").out.split()) - {"lo"}

    def link_type(self, interface: str) -> str:
        """Return the kernel's ARPHRD number: 32 is InfiniBand."""
        return self._inside("cat", f"/sys/class/net/{interface}/type").out

    def lockable_memory(self) -> str:
        """``unlimited`` or bytes."""
        limit = self._inside("sh", "-c", "ulimit -l").out
        return limit if limit == "unlimited" else str(int(limit) * 1024)

    def cpus(self) -> frozenset[int]:
        """Return the CPUs its processes may run on."""
        line = self._inside("grep", "Cpus_allowed_list", "/proc/self/status").out
        return cpu_set(line.partition(":")[2].strip())

    def make_node(self, major: int, minor: int) -> Output:
        """Try to make a character node of one's own."""
        return self._inside("mknod", "/tmp/stolen", "c", str(major), str(minor))  # noqa: S108 (in the guest)

    def open(self, path: str) -> Output:
        """Open a device for reading without reading from it."""
        return self._inside("sh", "-c", ': < "$1"', "sh", path)

    def set_address(self, interface: str, address: str) -> Output:
        self._inside("ip", "link", "set", interface, "up")
        return self._inside("ip", "address", "add", f"{address}/24", "dev", interface)

    def ping(self, address: str) -> Output:
        return self._inside("ping", "-c", "3", "-w", "6", address)

    def start_counting(self) -> None:
        """Start a process that writes the next number and the time, ten times in a second, until the server ends."""
        self._inside("sh", "-c", START, COUNT)

    def counted(self) -> list[tuple[int, float]]:
        """Return the numbers so far, and when they were written, in seconds; the last line may not be whole yet."""
        lines = self._inside("cat", "/root/numbers").out.splitlines()[:-1]
        return [(int(number), float(when)) for number, when in map(str.split, lines)]

    def life(self) -> str:
        """When the kernel started its first process and the one that counts, in ticks since the host's boot."""
        return self._inside("sh", "-c", "cut -d' ' -f1,22 /proc/1/stat /proc/$(cat /root/counter)/stat").out

    def _inside(self, *command: str) -> Output:
        return self._engine.inside(self.name, *command)


def cpu_set(text: str) -> frozenset[int]:
    """``0-2,7`` as a set (cpuset(7), list format)."""
    cpus: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)
