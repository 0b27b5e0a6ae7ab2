# SPDX-License-Identifier: Apache-2.0
"""Provide scenarios with VMs of both drivers; look into them, at their nodes, and for what they leave behind."""

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from tools.oned.cloud import Cloud
from tools.oned.machine import CHECKOUT, Machine, MachineFailed
from tools.oned.one import TIMEOUT, One

ROOT, DATA = "0", "1"
GONE_TIMEOUT = 90  # s; a node removes what a VM that was off left there in its next round of monitoring
POLL_INTERVAL = 0.5  # s
GPU = 'PCI=[VENDOR="10de",DEVICE="20b0",CLASS="0302"]\n'
FUNCTION = 'PCI=[VENDOR="15b3",CLASS="0207"]\n'
NETWORK = 'NIC=[NETWORK="net"]\n'
TEMPLATE = """NAME="{name}"
CPU=0.1
MEMORY=64
SCHED_REQUIREMENTS="HYPERVISOR=\\"{driver}\\""
SCHED_DS_REQUIREMENTS="NAME=\\"{datastore}\\""
DISK=[IMAGE="{image}"{root}]
DISK=[TYPE="fs",FORMAT="raw",SIZE=32]
CONTEXT=[NETWORK="YES"{context}]
{more}"""
EMULATION = """
import sys
sys.path.insert(0, sys.argv[1])
from tests.fakehost.control import FakeHostControl
getattr(FakeHostControl.from_environment(), sys.argv[2])(sys.argv[3])
"""
# One line for each thing that can be left behind by a VM. $1 is the node's directory. Locks stay: files whose names
# begin with a dot, and those of resizes, of which there are no more than numbers. Loop devices are the whole machine's:
# those of tests, which have their datastores in /tmp, are not a VM's.
LEFT = """
home=$1
docker --host unix://$home/docker/docker.sock ps --all --format 'Docker container {{.Names}}'
docker --host unix://$home/docker/docker.sock images --format 'Docker image {{.Repository}}:{{.Tag}} {{.ID}}'
LXD_DIR=$home/lxd lxc list --format csv --columns n | sed 's/^/LXD container /'
LXD_DIR=$home/lxd lxc image list --format csv --columns f | sed 's/^/LXD image /'
find /var/lib/onedock /var/lib/lxdone -mindepth 1 -maxdepth 1 -name 'one-*' 2> /dev/null | sed 's/^/directory /'
find /var/lib/containerhost -type f -path '*/o*' ! -path '*/resizing/*' ! -name '*lock*' ! -name '.*' 2> /dev/null |
    sed 's/^/record /'
find /var/lib/containerhost/docker -type f ! -name '*lock*' 2> /dev/null | sed 's/^/record /'
find /var/lib/one/datastores -mindepth 2 -maxdepth 2 -name '[0-9]*' | sed 's/^/disks /'
ip -o link | sed -n 's/^[0-9]*: \\(one-[^:@]*\\).*/interface \\1/p'
sed -n 's|^[^ ]* \\([^ ]*/one-[^ ]*\\) .*|mount \\1|p' /proc/self/mounts
iptables --list-rules 2> /dev/null | sed -n 's/^-N \\(one-.*\\)/chain \\1/p'
ovs-vsctl list-ports oneovs | sed 's/^/port of the switch /'
losetup --noheadings --output BACK-FILE | sed -n "/^\\/tmp\\//d; s|^\\(.*/datastores/.*\\)|loop device of \\1|p"
"""


class Driver(NamedTuple):
    """:ivar suffix: of its hosts' names
    :ivar image: that its VMs start from
    :ivar datastore: their system datastore
    """

    name: str
    suffix: str
    image: str
    datastore: str
    root: str = ""


ONEDOCK = Driver("onedock", "", "polite", "containers-system")
LXDONE = Driver("lxdone", "-lxd", "machine", "system", ",SIZE=256")
DRIVERS = (ONEDOCK, LXDONE)


class Stage:
    def __init__(self, cloud: Cloud, one: One) -> None:
        self.cloud = cloud
        self.one = one

    # VMs.

    def template(self, driver: Driver, name: str, more: str = "", *, datastore: str = "", image: str = "",
                 context: str = "", root: str | None = None) -> str:
        """:param root: what the root's DISK has beside its image"""
        return TEMPLATE.format(name=name, driver=driver.name, datastore=datastore or driver.datastore,
                               image=image or driver.image, more=more, context=context,
                               root=driver.root if root is None else root)

    def vm(self, driver: Driver, name: str, more: str = NETWORK, *, datastore: str = "", image: str = "",
           context: str = "", root: str | None = None) -> str:
        """Create a running VM with a volatile disk, of which root and disk have a file of random bytes."""
        vm = self.one.create("vm", self.template(driver, name, more, datastore=datastore, image=image, context=context,
                                                 root=root))
        self.one.running(vm)
        self.fill(vm)
        return vm

    def fill(self, vm: str) -> None:
        """Write a file of random bytes on its root and one on its volatile disk."""
        self.inside(vm, "head -c 3000000 /dev/urandom > /media/1/content; head -c 1000 /dev/urandom > /content; sync")

    def vms_on(self, driver: Driver, node: Machine, *more: str) -> list[str]:
        """Run VMs with what their templates have more, on one node."""
        vms = [self.one.create("vm", self.template(driver, "placed", words), "--hold") for words in more]
        for vm in vms:
            self.one("onevm", "deploy", vm, f"{node.name}{driver.suffix}", driver.datastore)
        for vm in vms:
            self.one.running(vm)
        return vms

    def node(self, vm: str) -> Machine:
        return self.of_host(self.one.host(vm))

    def of_host(self, host: str) -> Machine:
        return next(machine for machine in self.cloud.nodes if host.startswith(machine.name))

    def driver(self, vm: str) -> Driver:
        return LXDONE if self.one.host(vm).endswith(LXDONE.suffix) else ONEDOCK

    def engine(self, node: Machine, driver: Driver, *words: str) -> str:
        """Run a command of Docker's or LXD's own client on a node."""
        return node.run(*self.client(node, driver), *words)

    @staticmethod
    def client(node: Machine, driver: Driver) -> Sequence[str]:
        if driver is LXDONE:
            return ("env", f"LXD_DIR={node.home}/lxd", "lxc")
        return ("docker", "--host", f"unix://{node.home}/docker/docker.sock")

    def inside(self, vm: str, script: str) -> str:
        return self.node(vm).run(*self.entry(vm, script))

    def entry(self, vm: str, script: str) -> Sequence[str]:
        """Return the command of the VM's node that runs a script in its container."""
        node, driver = self.node(vm), self.driver(vm)
        between = ("--",) if driver is LXDONE else ()
        return (*self.client(node, driver), "exec", f"one-{vm}", *between, "sh", "-c", script)

    def sums(self, vm: str) -> str:
        return self.inside(vm, "sha256sum < /media/1/content; sha256sum < /content")

    def disk(self, vm: str, number: str) -> str:
        """Return the path of a disk on its node."""
        return f"/var/lib/one/datastores/{self.one.history(vm)['DS_ID']}/{vm}/disk.{number}"

    # Actions.

    def do(self, vm: str, action: str, *words: str, then: str = "ACTIVE RUNNING") -> None:
        """Have ``onevm`` do something, and wait until it is done.

        :raises AssertionError: it failed
        """
        before = self.one.error(vm)
        self.one("onevm", action, vm, *words)
        self.one.await_state(vm, then)
        error = self.one.error(vm)
        require(error == before, f"{action}: {error}")

    def migrate(self, vm: str, host: str, *words: str, then: str = "ACTIVE RUNNING") -> None:
        """Have a VM moved, and wait until it is there: oned answers the command before the VM leaves its state.

        :raises AssertionError: it failed
        """
        before = self.one.error(vm)
        self.one("onevm", "migrate", vm, host, *words)
        self.await_that(lambda: self.one.is_placed(vm, host) or self.one.error(vm) != before, f"it is on {host}",
                        TIMEOUT)
        self.one.await_state(vm, then)
        error = self.one.error(vm)
        require(error == before, f"migrate: {error}")

    def refused(self, vm: str, reason: str, action: str, *words: str, then: str = "ACTIVE RUNNING") -> str:
        """Have ``onevm`` do what must fail.

        :returns: the VM's error
        """
        before = self.one.error(vm)
        self.one("onevm", action, vm, *words)
        self.one.await_state(vm, then)
        error = self.await_that(lambda: self.one.error(vm) != before and self.one.error(vm),
                                f"{action} fails with {reason!r}")
        require(reason in error, f"{action} fails with {error!r}, not with {reason!r}")
        return error

    def off(self, vm: str, *words: str) -> None:
        self.do(vm, "poweroff", *words, then="POWEROFF LCM_INIT")

    def on(self, vm: str) -> None:
        self.do(vm, "resume")

    def end(self, *vms: str) -> None:
        for vm in vms:
            self.one("onevm", "terminate", "--hard", vm)
        for vm in vms:
            self.one.over(vm)

    def hot(self, vm: str, text: str) -> None:
        """Attach what a template of ``nic-attach --file`` says."""
        self.do(vm, "nic-attach", "--file", self.one.file(text))

    # Nodes.

    @staticmethod
    def emulation(node: Machine, name: str, address: str) -> None:
        """Cause something in a node's emulated hardware."""
        node.run(sys.executable, "-c", EMULATION, str(CHECKOUT), name, address)

    @contextmanager
    def removed(self, node: Machine, address: str) -> Iterator[None]:
        """Without a PCI device, which comes back."""
        self.emulation(node, "remove", address)
        try:
            yield
        finally:
            self.emulation(node, "restore", address)

    def gpus(self, vm: str) -> list[str]:
        """Addresses of its PCI devices on the node."""
        return addresses(self.one.show("vm", vm)["TEMPLATE"])

    def host_share(self, host: str) -> Any:
        """Return what oned knows of a host's capacity and devices."""
        found = self.one("onehost", "list", "--csv", "--list", "ID,NAME", "--filter", f"NAME={host}").split()[-1]
        return self.one.show("host", found.split(",")[0])["HOST_SHARE"]

    @staticmethod
    def await_that(condition, what: str, timeout: float = GONE_TIMEOUT):  # type: ignore[no-untyped-def]
        """Wait until a condition holds.

        :returns: what the condition came to
        """
        end = time.monotonic() + timeout
        while not (found := condition()):
            if time.monotonic() > end:
                raise AssertionError(f"{what}: not so after {timeout:g} s")
            time.sleep(POLL_INTERVAL)
        return found

    # What is left.

    def things(self) -> set[str]:
        """Return what VMs can leave behind, in oned and on the nodes."""
        found = {f"oned: VM {number} is {state}" for number, state in self.one.vms().items()}
        return found.union(*(self.things_on(node) for node in self.cloud.nodes))

    @staticmethod
    def things_on(node: Machine) -> set[str]:
        return {f"{node.name}: {line}" for line in node.run("sh", "-c", LEFT, "sh", str(node.home)).splitlines()}

    def left(self, before: set[str]) -> list[str]:
        """Return what is there beyond ``before``, also after some time."""
        end = time.monotonic() + GONE_TIMEOUT
        while (found := self.things() - before) and time.monotonic() < end:
            time.sleep(2)
        return sorted(found)

    def clear(self) -> None:
        """End every VM of a scenario that failed, by force."""
        for vm in self.one.vms():
            for words in (("terminate", "--hard"), ("recover", "--delete")):
                try:
                    self.one("onevm", words[0], vm, *words[1:])
                    self.one.over(vm, 60)
                    break
                except MachineFailed:
                    continue


def addresses(found: Mapping[str, Any]) -> list[str]:
    """Return the addresses of the PCI devices of a VM's template or of a host, as the kernel writes them."""
    devices = found.get("PCI", [])
    return [".".join(each["ADDRESS"].rsplit(":", 1)) for each in (devices if isinstance(devices, list) else [devices])]


def require(condition: object, problem: str) -> None:
    if not condition:
        raise AssertionError(problem)


def begun(*command: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
