"""What the probes report, measured: one request to LXD for any number of containers."""

import json
import os
from collections.abc import Callable
from pathlib import Path

from containerhost import topology
from containerhost.devices.scan import scan
from containerhost.engines.lxd.engine import LxdEngine
from containerhost.owners import Owners
from containerhost.sysfs import Host
from containerhost.topology import CpuTimes
from lxdone import backend, probes
from lxdone.conf import Options
from lxdone.vmm import DRIVER
from onedriver.errors import BadInput

LAST = "cpu-times.json"  # total and idle nanoseconds of the round before


class Measure:
    """One method for each probe."""

    def __init__(self, options: Options, engine: LxdEngine, host: Host) -> None:
        self._options = options
        self._engine = engine
        self._host = host

    def host_system(self) -> str:
        records = Owners(Path(self._options.owners)).records().values()
        elsewhere = {record.device_id for record in records if record.owner.driver != DRIVER or record.blocked}
        found = probes.host_system(self._engine.server(), topology.read(self._host), scan(self._host), elsewhere,
                                   self._options.pci_filter)
        return "\n".join(filter(None, (found, probes.wilds(self._engine.containers()))))

    def host_monitor(self) -> str:
        host = topology.read(self._host)
        return probes.host_monitor(topology.memory(self._host), len(host.cpus), self._busy(), network(self._host),
                                   host.nodes)

    def vm_status(self) -> str:
        return probes.vm_status(self._engine.containers())

    def _busy(self) -> float:
        """Since the round before; since the host's start at the first."""
        file = Path(self._options.state) / LAST
        now = totals(topology.cpu_times(self._host))
        before = last(file)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        unfinished = file.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps(now))
        os.replace(unfinished, file)
        return share(before, now)


def totals(times: CpuTimes) -> tuple[int, int]:
    """All and idle time."""
    idle = times.idle + times.iowait
    return times.kernel + times.user + idle, idle


def last(file: Path) -> tuple[int, int]:
    """What is no record of this program is no round before."""
    try:
        total, idle = json.loads(file.read_text())
        return int(total), int(idle)
    except (OSError, ValueError, TypeError):
        return 0, 0


def share(before: tuple[int, int], now: tuple[int, int]) -> float:
    """The share of time in use, 0 to 1. A total below the one before means that the host restarted."""
    if now[0] < before[0]:
        before = (0, 0)
    total, idle = now[0] - before[0], now[1] - before[1]
    return 1 - idle / total if total > 0 else 0.0


def network(host: Host) -> tuple[int, int]:
    """Bytes received and sent over the host's own cards: what leaves through a bridge is counted there once."""
    names = [name for name in host.names("/sys/class/net") if host.exists(f"/sys/class/net/{name}/device")]
    received, sent = (sum(host.number(f"/sys/class/net/{name}/statistics/{counter}") or 0 for name in names)
                      for counter in ("rx_bytes", "tx_bytes"))
    return received, sent


PROBES: dict[str, Callable[[Measure], str]] = {
    "host/system": Measure.host_system, "host/monitor": Measure.host_monitor, "vm/status": Measure.vm_status}


def probe(name: str, options: Options) -> str:
    if name not in PROBES:
        raise BadInput(f"there is no probe {name!r}; there are {', '.join(PROBES)}")
    return PROBES[name](Measure(options, backend.engine(options), Host()))
