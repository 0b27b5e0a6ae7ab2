"""What is tried with the real oned: a scenario is a function that raises where something is not as it should be."""

import sys
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tools.oned import setup
from tools.oned.cloud import Cloud
from tools.oned.machine import CHECKOUT, Machine, MachineFailed
from tools.oned.one import One

ROOT, DATA = "0", "1"
CONTENT = "/media/1/content"
OFFLINE_GROWTH = "CAP_SYS_RESOURCE"  # what a machine without it says of a mounted ext4 that is to grow


CALL = """
import sys
sys.path.insert(0, sys.argv[1])
from tests.fakehost.control import FakeHostControl
getattr(FakeHostControl.from_environment(), sys.argv[2])(sys.argv[3])
"""


class Result(NamedTuple):
    name: str
    seconds: float
    problem: str


class Scenarios:
    def __init__(self, cloud: Cloud, one: One) -> None:
        self._cloud = cloud
        self._one = one

    # A VM on Docker.

    def vm(self, name: str, datastore: str = "containers-system", more: str = "") -> str:
        """A running VM with a volatile disk that has a file of random bytes."""
        vm = self._one.create("vm", setup.CONTAINER.format(name=name, datastore=datastore, more=more))
        self._one.running(vm)
        self.inside(vm, f"head -c 4000000 /dev/urandom > {CONTENT}; head -c 1000 /dev/urandom > /content; sync")
        return vm

    def node(self, vm: str) -> Machine:
        name = self._one.host(vm)
        return next(machine for machine in self._cloud.nodes if name.startswith(machine.name))

    def docker(self, vm: str, *words: str) -> str:
        node = self.node(vm)
        return node.run("docker", "-H", f"unix://{node.home}/docker/docker.sock", *words)

    def inside(self, vm: str, script: str) -> str:
        return self.docker(vm, "exec", f"one-{vm}", "sh", "-c", script)

    def sums(self, vm: str) -> str:
        return self.inside(vm, f"sha256sum < {CONTENT}; sha256sum < /content")

    def disk(self, vm: str, number: str) -> str:
        """The path of a disk on its node."""
        history = self._one.show("vm", vm)["HISTORY_RECORDS"]["HISTORY"]
        last = history[-1] if isinstance(history, list) else history
        return f"/var/lib/one/datastores/{last['DS_ID']}/{vm}/disk.{number}"

    def check(self, vm: str) -> None:
        """:raises MachineFailed: the data disk's file system, of a VM that is off, is damaged"""
        self.node(vm).run("e2fsck", "-f", "-n", self.disk(vm, DATA))

    def end(self, vm: str) -> None:
        self._one("onevm", "terminate", "--hard", vm)
        self._one.await_state(vm, "DONE LCM_INIT")

    # The scenarios.

    def docker_vm_runs(self) -> None:
        self.end(self.vm("runs"))

    def disk_resize_of_a_running_vm(self) -> None:
        vm = self.vm("resize")
        before, path = self.sums(vm), self.disk(vm, DATA)
        size = self.node(vm).run("stat", "--format=%s", path)
        self._one("onevm", "disk-resize", vm, DATA, "96")
        time.sleep(2)
        self._one.running(vm)
        error = self._one.error(vm)
        if OFFLINE_GROWTH in error:
            require(size == self.node(vm).run("stat", "--format=%s", path), "a refused resize changed the file")
        else:
            require("error" not in error.lower(), error)
        require(before == self.sums(vm), "the content changed")
        self._one("onevm", "poweroff", vm)
        self._one.off(vm)
        self.check(vm)
        self._one("onevm", "disk-resize", vm, DATA, "160")
        time.sleep(1)
        self._one.off(vm)
        self.check(vm)
        self._one("onevm", "resume", vm)
        self._one.running(vm)
        require(before == self.sums(vm), "the content changed")
        require(int(self.inside(vm, "df -k /media/1 | tail -1 | awk '{print $2}'")) > 120_000, "it did not grow")
        self.end(vm)

    def disk_resize_of_the_root_changes_nothing(self) -> None:
        vm = self.vm("root")
        before, reference = self.sums(vm), self.node(vm).run("sha256sum", self.disk(vm, ROOT))
        self._one("onevm", "disk-resize", vm, ROOT, "512")
        time.sleep(2)
        self._one.running(vm)
        require("is the root of a container" in self._one.error(vm), f"refused with: {self._one.error(vm)}")
        require(reference == self.node(vm).run("sha256sum", self.disk(vm, ROOT)), "the reference changed")
        self._one("onevm", "poweroff", vm)
        self._one.off(vm)
        self._one("onevm", "resume", vm)
        self._one.running(vm)
        require(before == self.sums(vm), "the content changed")
        self.end(vm)

    def migrate_twice_there_and_back(self, datastore: str) -> None:
        vm = self.vm("moves", datastore)
        before = self.sums(vm)
        for _ in range(4):
            here = self._one.host(vm)
            there = next(machine.name for machine in self._cloud.nodes if machine.name != here)
            self._one("onevm", "migrate", "--poff", vm, there)
            time.sleep(1)
            self._one.running(vm)
            require(self._one.host(vm) == there, f"it is on {self._one.host(vm)}")
            require(before == self.sums(vm), "the content changed")
        self.end(vm)

    def migrate_between_own_folders(self) -> None:
        self.migrate_twice_there_and_back("containers-system")

    def migrate_in_a_shared_folder(self) -> None:
        self.migrate_twice_there_and_back(setup.SHARED)

    def snapshot_revert(self) -> None:
        vm = self.vm("snapshot", more=setup.GPU)
        before = self.sums(vm)
        self._one("onevm", "snapshot-create", vm, "first")
        time.sleep(1)
        self._one.running(vm)
        self.inside(vm, "echo other > /content")
        self._one("onevm", "snapshot-revert", vm, "0")
        time.sleep(1)
        self._one.running(vm)
        require(before == self.sums(vm), "the content is not that of the snapshot")
        require("nvidia" in self.inside(vm, "ls /dev"), "the GPU is gone")
        names = self.docker(vm, "ps", "--all", "--format", "{{.Names}}")
        require(names.split().count(f"one-{vm}") == 1 and f"one-{vm}-" not in names, f"left: {names}")
        self.end(vm)

    def nic_detach_after_a_gpu_left(self) -> None:
        vm = self.vm("gone", more=setup.GPU + 'NIC=[NETWORK="net"]\n')
        found = self._one.show("vm", vm)["TEMPLATE"]["PCI"]
        first = found[0] if isinstance(found, list) else found
        address = ".".join(first["ADDRESS"].rsplit(":", 1))
        self.call(self.node(vm), "remove", address)
        try:
            self._one("onevm", "nic-detach", vm, "1")
            time.sleep(1)
            self._one.running(vm)
            require("eth1" not in self.inside(vm, "ls /sys/class/net"), f"it is there: {self._one.error(vm)}")
            self._one("onevm", "resize", vm, "--memory", "192")
            time.sleep(1)
            self._one.running(vm)
            require("201326592" in self.docker(vm, "inspect", "--format", "{{.HostConfig.Memory}}", f"one-{vm}"),
                    f"it was not resized: {self._one.error(vm)}")
        finally:
            self.call(self.node(vm), "restore", address)
        self.end(vm)

    @staticmethod
    def call(node: Machine, name: str, address: str) -> None:
        """Cause something in a node's emulated hardware."""
        node.run(sys.executable, "-c", CALL, str(CHECKOUT), name, address)

    def lxd_vm_runs(self) -> None:
        vm = self._one.create("vm", setup.MACHINE.format(name="lxd"))
        self._one.running(vm)
        node = self.node(vm)
        lxc = ("env", f"LXD_DIR={node.home}/lxd", "lxc")
        require("RUNNING" in node.run(*lxc, "list", "--format=csv"), "LXD does not run it")
        self._one("onevm", "resize", vm, "--memory", "192")
        time.sleep(1)
        self._one.running(vm)
        require("201326592" in node.run(*lxc, "config", "get", f"one-{vm}", "limits.memory"), self._one.error(vm))
        self.end(vm)

    def all(self) -> Mapping[str, Callable[[], None]]:
        return {name: getattr(self, name) for name in (
            "docker_vm_runs", "disk_resize_of_a_running_vm", "disk_resize_of_the_root_changes_nothing",
            "migrate_between_own_folders", "migrate_in_a_shared_folder", "snapshot_revert",
            "nic_detach_after_a_gpu_left", "lxd_vm_runs")}


def run(scenarios: Mapping[str, Callable[[], None]], say: Callable[[str], None]) -> list[Result]:
    results = []
    for name, scenario in scenarios.items():
        started, problem = time.monotonic(), ""
        try:
            scenario()
        except (AssertionError, MachineFailed) as error:
            problem = str(error)
        results.append(Result(name, time.monotonic() - started, problem))
        say(f"{name}: {problem or 'passed'} ({results[-1].seconds:.1f} s)")
    return results


def require(condition: bool, problem: str) -> None:
    if not condition:
        raise AssertionError(problem)
