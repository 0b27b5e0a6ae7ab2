#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""OpenNebula's own driver for LXC beside lxdone and onedock, in one oned on two nodes: what people wait for.

    sudo .venv/bin/python bench/opennebula_peer.py --source DIR [--count N] [--rounds N] [--keep] [--json FILE]

Each round does with each driver, in an order that changes from round to round: COUNT VMs created at once, to RUNNING;
a NIC attached to each of five, one after the other; all powered off at once, resumed, and terminated. Monitoring: the
probes vm/status and vm/monitor of the first node, run as oned's shepherd runs them, while the VMs run. Medians of the
rounds, and ratios to OpenNebula's own; aim <= 1. Every VM has a root of 256 MiB, a volatile disk of 32 MiB and a NIC.
SOURCE is a source tree of OpenNebula, as for tools/opennebula; the packages lxc and bindfs must be there.
"""

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.functional import images
from tools.oned import setup
from tools.oned.__main__ import brought_up, progress
from tools.oned.cloud import HOME, Cloud
from tools.oned.machine import Machine, await_that
from tools.oned.one import One
from tools.oned.stage import DRIVERS, LXDONE, NETWORK, Driver, Stage

LXC = Driver("lxc", "-lxc", "peer", LXDONE.datastore)
ALL = (LXC, *DRIVERS)
PLUGS = 5
PROBES = 5  # times that each probe is run
POLL_INTERVAL = 0.2  # s
TIMEOUT = 900  # s
IDS = "root:600100001:65536\n"  # as the driver has them
PREPARE = """
set -e
mkdir -p /var/lib/lxc-one /var/log/lxc
chown oneadmin: /var/lib/lxc-one
echo 'oneadmin ALL=(ALL:ALL) NOPASSWD: ONE_LXC' > /etc/sudoers.d/peer
printf "$1" >> /etc/subuid
printf "$1" >> /etc/subgid
"""
PROBE = """
cd /var/tmp/one/im/$1-probes.d/vm/$2
for probe in *; do
    if [ -f "$probe" ] && [ -x "$probe" ]; then ./"$probe" "$1" "$3" < /dev/null > /dev/null; fi
done
"""


class Row(NamedTuple):
    """:ivar seconds: medians by driver
    :ivar ratios: to OpenNebula's own driver
    """

    what: str
    seconds: dict[str, float]
    ratios: dict[str, float]


class Peers:
    def __init__(self, cloud: Cloud, one: One) -> None:
        self._cloud = cloud
        self._stage = Stage(cloud, one)
        self._one = one

    def prepare(self) -> None:
        """Add OpenNebula's own driver to both nodes, and an image for it."""
        for node in self._cloud.nodes:
            node.run("sh", "-c", PREPARE, "sh", IDS)
        hosts = "".join(f"{node.address} {node.name}{LXC.suffix}\\n" for node in self._cloud.nodes)
        for machine in self._cloud.machines:
            machine.run("sh", "-c", f"printf '{hosts}' >> /etc/hosts")
        setup.add_hosts(self._cloud, self._one, LXC.name, LXC.suffix)
        file = raw_image(HOME / "peer.raw")
        self._cloud.front.run("install", "-m", "644", str(file), f"{setup.IMAGES_FROM}/{file.name}")
        self._one("oneimage", "create", "--datastore", "default", "--name", LXC.image, "--type", "OS", "--format",
                  "raw", "--path", f"{setup.IMAGES_FROM}/{file.name}")
        await_that(lambda: self._one("oneimage", "list", "--csv").count(",rdy") == 3, "the image is registered")

    def round(self, driver: Driver, count: int) -> dict[str, float]:
        """Do everything once with one driver.

        :returns: seconds by what was done
        """
        found: dict[str, float] = {}
        vms: list[str] = []
        template = without_context(self._stage.template(driver, "peer", NETWORK))
        found["deploy all"] = self._timed(
            lambda: vms.extend(self._one.create_vms(template, count)),
            lambda: self._all(vms, "ACTIVE RUNNING"))
        for kind in ("status", "monitor"):
            found[f"probe {kind}"] = self._probe(driver, kind)
        found["attach a NIC"] = statistics.median(self._plug(vm) for vm in vms[:PLUGS])
        found["power off all"] = self._timed(lambda: self._one("onevm", "poweroff", "--hard", ",".join(vms)),
                                             lambda: self._all(vms, "POWEROFF LCM_INIT"))
        found["resume all"] = self._timed(lambda: self._one("onevm", "resume", ",".join(vms)),
                                          lambda: self._all(vms, "ACTIVE RUNNING"))
        found["terminate all"] = self._timed(lambda: self._one("onevm", "terminate", "--hard", ",".join(vms)),
                                             lambda: not set(vms) & set(self._one.vms()))
        return found

    def _plug(self, vm: str) -> float:
        """Attach a NIC.

        :raises AssertionError: that failed
        """
        start = time.monotonic()
        self._stage.do(vm, "nic-attach", "--network", "net")
        return time.monotonic() - start

    def _all(self, vms: Sequence[str], state: str) -> bool:
        states = self._one.vms()
        failed = [f"{vm}: {states[vm]}: {self._one.error(vm)}" for vm in vms if "FAIL" in states.get(vm, "")]
        if failed:
            raise SystemExit(f"opennebula_peer: {failed[0]}")
        return all(states.get(vm) == state for vm in vms)

    @staticmethod
    def _timed(begin: Callable[[], object], done: Callable[[], bool]) -> float:
        start = time.monotonic()
        begin()
        while not done():
            if time.monotonic() - start > TIMEOUT:
                raise SystemExit(f"opennebula_peer: not done after {TIMEOUT} s")
            time.sleep(POLL_INTERVAL)
        return time.monotonic() - start

    def _probe(self, driver: Driver, kind: str) -> float:
        """Measure one run of a node's probes, without what entering the node costs.

        :returns: seconds
        """
        node = self._cloud.nodes[0]
        number = self._one("onehost", "list", "--csv", "--list", "ID,NAME").split(f",{node.name}{driver.suffix}\n")[0]
        host = number.rsplit("\n", 1)[-1]
        return max(0.0, median_of(node, "sh", "-c", PROBE, "sh", driver.name, kind, host) - median_of(node, "true"))


def without_context(template: str) -> str:
    """Return what all three drivers can run.

    OpenNebula's own mounts a volatile disk only if its file system is named, and needs a kernel with iso9660 for a
    CONTEXT."""
    return re.sub(r"(?m)^CONTEXT=.*\n", "", template).replace("SIZE=32", 'SIZE=32,FS="ext4"')


def median_of(node: Machine, *command: str) -> float:
    taken = []
    for _ in range(PROBES):
        start = time.monotonic()
        node.run(*command, user="oneadmin")
        taken.append(time.monotonic() - start)
    return statistics.median(taken)


def raw_image(file: Path) -> Path:
    """Make an ext4 file system with the files of lxdone's image."""
    root, tar = HOME / "peer-root", HOME / "peer.tar"
    if not file.exists():
        images.only_rootfs(images.all_formats(HOME / "images")["unified"], tar)
        root.mkdir(exist_ok=True)
        subprocess.run(["tar", "-xf", str(tar), "-C", str(root)], check=True)
        subprocess.run(["truncate", "--size=256M", str(file)], check=True)
        subprocess.run(["mkfs.ext4", "-q", "-d", str(root), str(file)], check=True)
        shutil.rmtree(root)
    return file


def rows_of(rounds: dict[str, list[dict[str, float]]]) -> list[Row]:
    rows = []
    for what in rounds[LXC.name][0]:
        medians = {name: statistics.median(found[what] for found in all_found) for name, all_found in rounds.items()}
        ratios = {name: seconds / medians[LXC.name] for name, seconds in medians.items() if name != LXC.name}
        rows.append(Row(what, medians, ratios))
    return rows


def line(row: Row) -> str:
    return f"{row.what:16}" + "".join(
        f"{row.seconds[driver.name]:>10.2f} s {f'{row.ratios[driver.name]:.2f} x' if driver is not LXC else '':>7}"
        for driver in ALL)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--source", type=Path, required=True)
    options.add_argument("--count", type=int, default=20)
    options.add_argument("--rounds", type=int, default=1)
    options.add_argument("--keep", action="store_true")
    options.add_argument("--json", type=Path)
    chosen = options.parse_args()
    say = progress()
    cloud = Cloud(say)
    one = One(cloud.front)
    rounds: dict[str, list[dict[str, float]]] = {driver.name: [] for driver in ALL}
    try:
        brought_up(cloud, one, chosen.source, say)
        peers = Peers(cloud, one)
        if LXC.suffix not in one("onehost", "list", "--csv"):
            peers.prepare()
        for number in range(chosen.rounds):
            for driver in (*ALL[number % len(ALL):], *ALL[:number % len(ALL)]):
                found = peers.round(driver, chosen.count)
                rounds[driver.name].append(found)
                say(f"{driver.name}: " + ", ".join(f"{what} {seconds:.2f} s" for what, seconds in found.items()))
    finally:
        one.close()
        if not chosen.keep:
            cloud.down()
    rows = rows_of(rounds)
    if chosen.json:
        chosen.json.write_text(json.dumps([row._asdict() for row in rows], indent=1) + "\n")
    print(f"{'':16}" + "".join(f"{driver.name:>20}" for driver in ALL))
    print("\n".join(map(line, rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
