#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A real oned with many nodes: what deployments and monitoring cost it, beside OpenNebula's own dummy driver.

    sudo .venv/bin/python bench/opennebula_cloud.py --source DIR [--hosts N] [--vms N] [--seconds N] [--json FILE]

oned, onemonitord and the drivers' processes are OpenNebula's, on a front-end in an emulated host. The nodes are
processes of bench/emulatednodes.py. For the driver dummy, which does nothing, and then for lxdone, each with a new
oned: --hosts hosts are made, --vms VMs created and deployed at once and awaited, then monitored for --seconds. Both
have OpenNebula's transfer and network drivers dummy, and the periods of OpenNebula's own configuration files.

SOURCE is a source tree of OpenNebula, as for tools/opennebula; $OPENNEBULA_SOURCE by default.
"""

import argparse
import collections
import contextlib
import datetime
import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.manyhosts.figures import percentile
from tools.oned import front_end
from tools.oned.__main__ import progress
from tools.oned.machine import CHECKOUT, Machine, MachineFailed, await_that, run
from tools.oned.one import One

HOME = CHECKOUT / ".cache/opennebula-cloud"
NODES = "/run/nodes"
READY = "1"  # state of an image
TICKS = os.sysconf("SC_CLK_TCK")
POLL_INTERVAL = 2.0  # s
AT_ONCE = 500  # VMs that one command creates: it has a time limit
STALLED = 600  # s to wait for the next VM
QUIET = 70  # s after the last deployment, for which nodes repeat the states of VMs
SETTINGS = {"MONITORING_INTERVAL_DATASTORE": 300, "MONITORING_INTERVAL_MARKET": 600, "MANAGER_TIMER": 15,
            "MONITORING_INTERVAL_HOST": 180, "SCRIPTS_REMOTE_DIR": "/var/lib/one/remotes", "BEACON_HOST": "30,",
            "SYSTEM_HOST": "600,", "MONITOR_HOST": "120,", "STATE_VM": "5,", "MONITOR_VM": "30,"}
DUMMY = {"oned": 'VM_MAD=[NAME="dummy",EXECUTABLE="one_vmm_dummy",TYPE="xml"]\n',
         "monitord": 'IM_MAD=[NAME="dummy",EXECUTABLE="one_im_sh",ARGUMENTS="-r 3 -t 15 -w 90 dummy",THREADS=0]\n'}
# A command on a node runs on the front-end, where lxdone is that node's.
SSH = f"""#!/bin/sh
while :; do case $1 in -[oiplF]) shift 2 ;; -*) shift ;; *) break ;; esac; done
export NODE="$1" PATH="{NODES}/bin:$PATH"
shift
exec sh -c "$*"
"""
SUDO = '#!/bin/sh\nshift\nexec "$@"\n'
DUMMY_MONITOR = f'#!/bin/sh\nfor NODE; do :; done\nexport NODE\nexec {NODES}/bin/lxdone-monitor "$@"\n'
ADD_HOSTS = """
$LOAD_PATH << '/usr/lib/one/ruby'
require 'opennebula'
driver, *names = ARGV
client = OpenNebula::Client.new
names.each do |name|
  host = OpenNebula::Host.new(OpenNebula::Host.build_xml, client)
  error = host.allocate(name, driver, driver, 0)
  abort(error.message) if OpenNebula.is_error?(error)
end
"""
# Not by the scheduler: with some hundred VMs that wait, oned 7.4.0 and its process stop, each writing to the other.
ADD_VMS = """
$LOAD_PATH << '/usr/lib/one/ruby'
require 'opennebula'
first, last, hosts, datastore = ARGV[1..].map(&:to_i)
client = OpenNebula::Client.new
(first...last).each do |number|
  vm = OpenNebula::VirtualMachine.new(OpenNebula::VirtualMachine.build_xml, client)
  error = vm.allocate(ARGV[0], true)
  error = vm.deploy(number % hosts, false, datastore) unless OpenNebula.is_error?(error)
  abort(error.message) if OpenNebula.is_error?(error)
end
"""
NETWORK = 'NAME="net"\nVN_MAD="dummy"\nBRIDGE="onebr"\nAR=[TYPE="IP4",IP="10.1.0.1",SIZE="60000"]\n'
TEMPLATE = """NAME="vm"
CPU=0.01
MEMORY=16
DISK=[IMAGE="image"]
NIC=[NETWORK="net"]
CONTEXT=[NETWORK="YES"]
"""
# Processes of the front-end by a word of their command line; the time of scripts is that of the process they are of.
PROCESSES = ("oned", "onemonitord", "one_vmm_exec.rb", "one_vmm_dummy.rb", "one_tm.rb")
CHANGE = re.compile(r"^(.{24}) .*New LCM state is (PROLOG|RUNNING)$", re.M)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, default=os.environ.get("OPENNEBULA_SOURCE"))
    for option, default in (("--hosts", 100), ("--vms", 2000), ("--seconds", 360)):
        parser.add_argument(option, type=int, default=default)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    if chosen.source is None:
        parser.error("it needs a source tree of OpenNebula: --source DIR or $OPENNEBULA_SOURCE")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    say, source = progress(), Path(chosen.source).resolve()
    front_end.build(source, say)
    results = {}
    for kind in ("dummy", "lxdone"):
        with contextlib.closing(Cloud(kind, chosen.hosts, say)) as cloud:
            cloud.up(source)
            results[kind] = cloud.measure(chosen.vms, chosen.seconds)
        say(f"{kind}: {json.dumps(results[kind])}")
        if chosen.json:
            chosen.json.write_text(json.dumps(results, indent=1) + "\n")
    print(text(results))
    return 0


class Cloud:
    """A front-end on an emulated host, and processes that are its nodes.

    :param kind: the driver of all nodes
    :param hosts: their number
    """

    def __init__(self, kind: str, hosts: int, say: Callable[[str], None]) -> None:
        self._kind = kind
        self._hosts = [f"{kind}-{number:03}" for number in range(1, hosts + 1)]
        self._say = say
        # Not all of /var: a checkout may be below it.
        self._front = Machine(f"cloud-{CHECKOUT.name}", "front-end", HOME / "front-end", "127.0.0.1",
                              ("/etc", "/usr", "/var/lib", "/var/log"))
        self._one = One(self._front)

    def up(self, source: Path) -> None:
        self.close()
        self._front.start("127.0.0.1 front-end\n")
        run(["nsenter", f"--target={self._front.pid}", "--net", "ip", "link", "set", "lo", "up"])
        self._front.run("mount", "-t", "tmpfs", "tmpfs", "/var/lib/one")
        front_end.install(self._front, source)
        front_end.configure(self._front)
        for name, driver in DUMMY.items():
            file = f"/etc/one/{name}.conf"
            front_end.put(self._front, file, configured(self._front.run("cat", file)) + driver)
        self._start_nodes()
        front_end.start(self._front)
        self._say(f"{self._kind}: oned answers")

    def close(self) -> None:
        self._one.close()
        if self._front.up:
            self._front.stop()
        shutil.rmtree(HOME, ignore_errors=True)

    def _start_nodes(self) -> None:
        self._front.begin("nodes", "env", f"PYTHONPATH={CHECKOUT}", "OS_NOVA_DISABLE_EVENTLET_PATCHING=1",
                          sys.executable, "-c", "from bench.emulatednodes import main; main()", NODES,
                          "/var/lib/one/datastores", *self._hosts)
        await_that(lambda: sum(file.is_socket() for file in self._path(NODES).glob("*")) == len(self._hosts),
                   "the nodes listen", 600)
        self._front.run("rm", "-r", "/var/lib/one/remotes/im/dummy.d")
        # A node has the front-end's own directory of scripts: nothing is to be copied.
        for path, script in {"/usr/bin/ssh": SSH, "/usr/bin/rsync": "#!/bin/sh\n", f"{NODES}/bin/sudo": SUDO,
                             "/var/lib/one/remotes/im/dummy.d/monitor": DUMMY_MONITOR}.items():
            front_end.put(self._front, path, script, "755")

    def _path(self, path: str) -> Path:
        """Return a path of the front-end, for this process."""
        return Path(f"/proc/{self._front.pid}/root{path}")

    def measure(self, vms: int, seconds: int) -> Mapping[str, Any]:
        """Create hosts and VMs, then let them rest.

        :param seconds: of rest
        """
        self._add_hosts()
        images = self._one.create("datastore", 'NAME="images"\nTYPE="IMAGE_DS"\nDS_MAD="dummy"\nTM_MAD="dummy"\n')
        floor = self._one.create("datastore", 'NAME="floor"\nTYPE="SYSTEM_DS"\nTM_MAD="dummy"\n')
        await_that(lambda: int(self._one.show("datastore", images)["FREE_MB"]) > 0, "the datastore is monitored", 600)
        self._one("oneimage", "create", "--datastore", "images", "--name", "image", "--type", "OS", "--path",
                  "/etc/hostname")
        await_that(lambda: self._one.show("image", "0")["STATE"] == READY, "the image is ready")
        self._one.create("vnet", NETWORK)
        load = [os.getloadavg()[0]]
        deployments = self._deploy(vms, floor)
        placed = self._path(f"{NODES}/placed")
        placed.write_text(self._one("onevm", "list", "--no-header", "--list", "HOST,ID", "--csv").replace(",", " "))
        time.sleep(QUIET)
        return {"hosts": len(self._hosts), "vms": vms, "deployments": deployments, "rest": self._rest(seconds),
                "load average": [*load, os.getloadavg()[0]]}

    def _add_hosts(self) -> None:
        begin = time.monotonic()
        self._one("ruby", "-e", ADD_HOSTS, self._kind, *self._hosts)
        await_that(self._are_on, "the hosts are monitored", 600, POLL_INTERVAL)
        self._say(f"{self._kind}: {len(self._hosts)} hosts are monitored after {time.monotonic() - begin:.0f} s")

    def _are_on(self) -> bool:
        """Return whether all hosts are monitored, and start the monitoring of those again where it failed.

        On a machine that is busy oned's driver may lose the answer (``capture3_timeout`` waits 0.1 s for it)."""
        states = [line.split(",") for line in self._one("onehost", "list", "--csv", "--list", "ID,STAT").splitlines()]
        if failed := [number for number, state in states if state == "err"]:
            for action in "offline", "enable":
                self._one("onehost", action, ",".join(failed))
        return sum(state == "on" for _, state in states) == len(self._hosts)

    def _deploy(self, vms: int, datastore: str) -> Mapping[str, Any]:
        before, writes, begin = self._spent(), self._writes(), int(time.time())
        for first in range(0, vms, AT_ONCE):
            self._one("ruby", "-e", ADD_VMS, TEMPLATE, str(first), str(min(vms, first + AT_ONCE)),
                      str(len(self._hosts)), datastore)
        # Their logs, because requests would cost oned something.
        logs = [self._path(f"/var/log/one/{number}.log") for number in range(vms)]
        for log in logs:
            await_that(lambda log=log: runs(log), f"VM {log.stem} runs", STALLED, POLL_INTERVAL)
        self._say(f"{self._kind}: {vms} VMs run")
        spent, writes = difference(before, self._spent()), self._writes() - writes
        changes = [{state: stamp(when) for when, state in CHANGE.findall(log.read_text())} for log in logs]
        created = sorted(each["RUNNING"] - begin for each in changes)
        return {"per second": vms / max(1, created[-1]), "from creation": percentiles(created),
                "from placement": percentiles(sorted(each["RUNNING"] - each["PROLOG"] for each in changes)),
                "writes": writes / vms, "processor ms": {name: 1000 * used / vms for name, used in spent.items()}}

    def _rest(self, seconds: int) -> Mapping[str, Any]:
        messages = self._path(f"{NODES}/messages")
        offset, writes, before, begin = messages.stat().st_size, self._writes(), self._spent(), time.monotonic()
        time.sleep(seconds)
        took, spent, writes = time.monotonic() - begin, difference(before, self._spent()), self._writes() - writes
        sizes = collections.defaultdict(list)
        with messages.open() as lines:
            lines.seek(offset)
            for line in lines:
                kind, size = line.split()
                sizes[kind].append(int(size))
        return {"processor %": {name: 100 * used / took for name, used in spent.items()}, "writes": writes / took,
                "messages": {kind: (len(each) / took, sum(each) // len(each)) for kind, each in sorted(sizes.items())},
                "memory MiB": {name: int(field(directory / "status", "VmRSS")) >> 10
                               for name, directory in self._processes()}}

    def _writes(self) -> int:
        """Return the file change counter of oned's database: each transaction that writes increments it."""
        with self._path("/var/lib/one/one.db").open("rb") as file:
            return int.from_bytes(file.read(28)[24:], "big")  # sqlite's file format, section 1.3

    def _processes(self) -> Iterator[tuple[str, Path]]:
        """Yield the front-end's processes, each with its name in :data:`PROCESSES`."""
        network = os.readlink(f"/proc/{self._front.pid}/ns/net")
        for directory in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it ended
                if os.readlink(directory / "ns/net") == network:
                    words = (directory / "cmdline").read_text(errors="replace").split("\0")[:2]
                    yield from ((name, directory) for word in words if (name := word.rpartition("/")[2]) in PROCESSES)

    def _spent(self) -> Mapping[str, float]:
        """Return seconds of processor time by name, with that of children that ended."""
        spent: dict[str, float] = collections.defaultdict(float)
        for name, directory in self._processes():
            fields = (directory / "stat").read_text().rpartition(")")[2].split()
            spent[name] += sum(map(int, fields[11:15])) / TICKS
        return spent


def configured(text: str) -> str:
    for key, value in SETTINGS.items():
        text = re.sub(rf"(?m)^( *)#?{key}( *)=.*$", rf"\1{key}\2= {value}", text)
    return text


def runs(log: Path) -> bool:
    """Return whether a VM runs, from its log; raise MachineFailed if it never will."""
    said = log.read_text() if log.exists() else ""
    if "_FAILURE" in said:
        raise MachineFailed(said[-1000:])
    return "RUNNING" in said


def stamp(when: str) -> float:
    return datetime.datetime.strptime(when, "%a %b %d %H:%M:%S %Y").astimezone().timestamp()


def percentiles(ordered: Sequence[float]) -> Mapping[str, float]:
    return {f"p{part}": percentile(ordered, part / 100) for part in (50, 95, 99)}


def difference(before: Mapping[str, float], after: Mapping[str, float]) -> Mapping[str, float]:
    return {name: seconds - before.get(name, 0) for name, seconds in after.items()}


def field(file: Path, name: str) -> str:
    return next(line.split()[1] for line in file.read_text().splitlines() if line.startswith(f"{name}:"))


def text(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a table with a column for each driver."""
    rows = [("", list(results))]

    def row(name: str, cell: Callable[[Mapping[str, Any]], str]) -> None:
        rows.append((name, [cell(each) for each in results.values()]))

    row("deployments", lambda each: f"{each['deployments']['per second']:.2f} /s")
    for begin in ("from creation", "from placement"):
        row(f"RUNNING {begin}: p50, p95, p99",
            lambda each, begin=begin: ", ".join(f"{value:.0f}" for value in each["deployments"][begin].values()) + " s")
    for name in PROCESSES:
        row(f"{name}: a deployment",
            lambda each, name=name: f"{each['deployments']['processor ms'].get(name, 0):.0f} ms")
    for name in PROCESSES:
        row(f"{name}: at rest", lambda each, name=name: f"{each['rest']['processor %'].get(name, 0):.2f} %")
    row("database writes: a deployment", lambda each: f"{each['deployments']['writes']:.1f}")
    row("database writes at rest", lambda each: f"{each['rest']['writes']:.2f} /s")
    for kind in sorted({kind for each in results.values() for kind in each["rest"]["messages"]}):
        row(f"{kind} at rest",
            lambda each, kind=kind: "{:.2f} /s of {} bytes".format(*each["rest"]["messages"].get(kind, (0, 0))))
    return "\n".join(name.ljust(36) + "".join(cell.rjust(24) for cell in cells) for name, cells in rows)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MachineFailed as error:
        sys.exit(f"opennebula_cloud: {error}")
