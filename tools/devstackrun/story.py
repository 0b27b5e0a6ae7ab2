# SPDX-License-Identifier: Apache-2.0
"""What is done on the machine, and what must hold then."""

import configparser
import dataclasses
import datetime
import json
import re
import time
from collections.abc import Callable
from typing import Any

from tools import supportmatrix
from tools.devstackrun import localconf
from tools.devstackrun.machine import LOGS, Machine, MachineFailed
from tools.tempestrun import features

DEVSTACK = "/opt/stack/devstack"
STACK_TIMEOUT = 3600  # s
UNSTACK_TIMEOUT = 900  # s
SERVER_TIMEOUT = 300  # s
TEMPEST = "/opt/stack/tempest"
TEMPEST_TIMEOUT = 900  # s
TESTS = r"tempest\.api\.compute\.servers\.test_create_server\.ServersTestJSON\."
SERVER, NETWORK = "first", "private"
CLIENT = ("openstack", "--os-cloud", "devstack-admin")
OWNERS = "/var/lib/containerhost/owners"


@dataclasses.dataclass(frozen=True)
class Fact:
    """:ivar seconds: what it took"""

    words: str
    holds: bool
    seconds: float


class Story:
    """:param say: prints a line
    """

    def __init__(self, machine: Machine, wanted: localconf.Wanted, say: Callable[[str], None]) -> None:
        self._machine = machine
        self._wanted = wanted
        self._say = say
        self._since = time.monotonic()
        self._client = "lxc" if wanted.engine == "lxd" else "incus"
        self.facts: list[Fact] = []

    @property
    def holds(self) -> bool:
        return bool(self.facts) and all(fact.holds for fact in self.facts)

    def stack(self) -> None:
        """Install and start everything as DevStack does it.

        :raises MachineFailed: stack.sh failed
        """
        source = f"file://{localconf.SOURCES}/openstack/devstack.git"
        self._machine.run("git", "clone", "--quiet", source, DEVSTACK)
        self._machine.write(f"{DEVSTACK}/local.conf", localconf.text(self._wanted))
        self._say("stack.sh runs, which takes five to thirty minutes")
        self._begin()
        self._machine.logged("stack", f"{DEVSTACK}/stack.sh", timeout=STACK_TIMEOUT)
        self._fact("stack.sh ends with status 0", True)

    def server(self) -> None:
        """Boot a server from a flavor that the plug-in made for the host's GPUs.

        :raises MachineFailed: a command of the cloud failed
        """
        flavors = [flavor["Name"] for flavor in self._openstack("flavor", "list")]
        flavor = next((name for name in flavors if ".gpu-" in name and ".x1." not in name), None)
        self._fact(f"the plug-in made the GPU flavor {flavor}", flavor is not None)
        if flavor is None:
            return
        self._openstack("network", "create", NETWORK)
        self._openstack("subnet", "create", NETWORK, "--network", NETWORK, "--subnet-range", "192.0.2.0/24")
        self._begin()
        self._machine.run(*CLIENT, "server", "create", SERVER, "--flavor", flavor, "--image", "busybox",
                          "--network", NETWORK, "--wait", timeout=SERVER_TIMEOUT)
        server = self._openstack("server", "show", SERVER)
        seconds = (_moment(server["OS-SRV-USG:launched_at"]) - _moment(server["created"])).seconds
        self._fact(f"the server is {server['status']}, {seconds} s after its request", server["status"] == "ACTIVE")
        name = server["OS-EXT-SRV-ATTR:instance_name"]
        nodes = re.findall(r"\bnvidia[0-9]+\b", self._engine("exec", name, "--", "ls", "/dev"))
        self._fact(f"{name} runs and has one GPU: {' '.join(nodes)}", len(nodes) == 1)
        (port,) = self._openstack("port", "list", "--server", server["id"])
        links = self._engine("exec", name, "--", "ip", "link")
        self._fact(f"it has the interface of its port, {port['MAC Address']}", port["MAC Address"] in links)
        allocated = self._openstack("resource", "provider", "allocation", "show", server["id"])
        self._fact("Placement has a GPU allocated to it", any("CUSTOM_GPU" in str(each) for each in allocated))

    def tempest(self) -> None:
        """Compare what Tempest is told of the driver with the support matrix, and let it test servers.

        :raises MachineFailed: there is no tempest.conf
        """
        self._begin()
        conf = configparser.ConfigParser(interpolation=None)
        conf.read_string(self._machine.root_command("cat", f"{TEMPEST}/etc/tempest.conf"))
        told = dict(conf["compute-feature-enabled"])
        other = [name for name, value in features.enabled(supportmatrix.load()).items() if told.get(name) != value]
        self._fact(f"tempest.conf has the driver's features {' '.join(other)}".rstrip(), not other)
        self._begin()
        command = f"cd {TEMPEST} && .tox/tempest/bin/tempest run --concurrency 1 --regex '{TESTS}'"
        try:
            self._machine.logged("tempest", "sh", "-c", command, timeout=TEMPEST_TIMEOUT)
        except MachineFailed as error:
            self._say(str(error))
        totals = re.findall(r" - (Passed|Failed): ([0-9]+)", (LOGS / "tempest.log").read_text(errors="replace"))
        passed, failed = (int(dict(totals).get(name, -1)) for name in ("Passed", "Failed"))
        self._fact(f"Tempest's tests of servers: {passed} passed, {failed} failed", passed > 0 and failed == 0)

    def unstack(self) -> None:
        """Stop everything, with the server still there.

        :raises MachineFailed: unstack.sh failed
        """
        self._begin()
        self._machine.logged("unstack", f"{DEVSTACK}/unstack.sh", timeout=UNSTACK_TIMEOUT)
        self._fact("unstack.sh ends with status 0", True)
        self._fact("no container is left", not self._engine("list", "--format", "csv").strip())
        held = self._machine.root_command("sh", "-c", f"cat {OWNERS}/*.json 2> /dev/null || true")
        self._fact("no device is held", not held.strip())
        units = self._machine.root_command("systemctl", "list-units", "--plain", "--no-legend", "--all", "devstack@*")
        running = [line.split()[0] for line in units.splitlines() if " running " in line]
        self._fact(f"no service of DevStack runs {' '.join(running)}".rstrip(), not running)

    def clean(self) -> None:
        """Remove what stack.sh made.

        :raises MachineFailed: clean.sh failed
        """
        self._begin()
        self._machine.logged("clean", f"{DEVSTACK}/clean.sh", timeout=UNSTACK_TIMEOUT)
        self._fact("clean.sh ends with status 0", True)
        self._fact("the storage pool is gone", not self._engine("storage", "list", "--format", "csv").strip())
        self._fact("the records of devices are gone", not (self._machine.root / OWNERS[1:]).exists())

    def _openstack(self, *command: str) -> Any:
        return json.loads(self._machine.run(*CLIENT, *command, "--format", "json", timeout=SERVER_TIMEOUT))

    def _engine(self, *command: str) -> str:
        return self._machine.root_command(self._client, *command)

    def _begin(self) -> None:
        self._since = time.monotonic()

    def _fact(self, words: str, holds: bool) -> None:
        self.facts.append(Fact(words, holds, round(time.monotonic() - self._since, 1)))
        self._say(f"{'ok ' if holds else 'NOT'} {words}")


def _moment(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text.rstrip("Z").split(".")[0])
