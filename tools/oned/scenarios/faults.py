# SPDX-License-Identifier: Apache-2.0
"""Test faults: daemons end, containers stop or vanish behind oned's back, datastores are full."""

from collections.abc import Iterator
from contextlib import contextmanager

from tools.oned import front_end, node, setup
from tools.oned.machine import Machine, MachineFailed, await_that
from tools.oned.scenarios import for_each_driver, scenario
from tools.oned.stage import DRIVERS, GPU, LXDONE, NETWORK, ONEDOCK, Driver, Stage, require

FAILED_UNDEPLOY = "ACTIVE EPILOG_UNDEPLOY_FAILURE"
STOP = {"onedock": ("stop", "--time", "1"), "lxdone": ("stop", "--force")}


@for_each_driver
def stopped_behind_oneds_back(stage: Stage, driver: Driver) -> str:
    vm = stage.vm(driver, "stopped", NETWORK + GPU)
    before = stage.sums(vm)
    stage.engine(stage.node(vm), driver, *STOP[driver.name], f"one-{vm}")
    stage.one.await_state(vm, "POWEROFF LCM_INIT")
    stage.on(vm)
    require(stage.sums(vm) == before, "the content changed")
    stage.end(vm)
    return "POWEROFF, and it can be resumed"


@for_each_driver
def removed_behind_oneds_back(stage: Stage, driver: Driver) -> str:
    """The container is gone; what else the VM has is still there until the VM ends."""
    vm = stage.vm(driver, "removed", NETWORK + GPU)
    stage.engine(stage.node(vm), driver, "delete" if driver is LXDONE else "rm", "--force", f"one-{vm}")
    stage.one.await_state(vm, "POWEROFF LCM_INIT")
    stage.one("onevm", "terminate", "--hard", vm)
    stage.one.over(vm)
    stage.end(stage.vm(driver, "next", GPU * 2))
    return "POWEROFF, terminated, its GPU is free"


@for_each_driver
def engine_restarted(stage: Stage, driver: Driver) -> str:
    vm = stage.vm(driver, "engine", NETWORK + GPU)
    before, machine = stage.sums(vm), stage.node(vm)
    restart(stage, machine, driver)
    stage.one.await_state(vm, "ACTIVE RUNNING")
    require(stage.sums(vm) == before, "the content changed")
    stage.do(vm, "nic-attach", "--network", "net")
    stage.off(vm)
    stage.on(vm)
    stage.end(vm)
    return "the VM runs on"


def restart(stage: Stage, machine: Machine, driver: Driver) -> None:
    if driver is ONEDOCK:
        stop(machine, f"{machine.home}/docker/pid")
        node.begin_docker(machine)
    else:
        stop(machine, f"{machine.home}/lxd/pid")
        node.begin_lxd(machine)


def stop(machine: Machine, pid_file: str) -> None:
    machine.run("sh", "-c", 'pid=$(cat "$0"); kill "$pid"; while [ -e "/proc/$pid" ]; do sleep 0.1; done', pid_file)


@for_each_driver
def node_rebooted(stage: Stage, driver: Driver) -> str:
    """All containers are stopped and the engine starts anew, as after a reboot."""
    vms = [stage.vm(driver, "boot", NETWORK + GPU), stage.vm(driver, "boot"), stage.vm(driver, "boot")]
    before = {vm: stage.sums(vm) for vm in vms}
    for machine in stage.cloud.nodes:
        for vm in vms:
            if stage.node(vm) is machine:
                stage.engine(machine, driver, *STOP[driver.name], f"one-{vm}")
        restart(stage, machine, driver)
    for vm in vms:
        stage.one.await_state(vm, "POWEROFF LCM_INIT")
        stage.on(vm)
        require(stage.sums(vm) == before[vm], "the content changed")
    stage.end(*vms)
    return "POWEROFF, and each can be resumed"


@scenario
def oned_restarted(stage: Stage) -> str:
    vms = []
    for driver, machine in zip(DRIVERS, stage.cloud.nodes, strict=True):  # of one node's GPUs each driver knows late
        vms += stage.vms_on(driver, machine, NETWORK + GPU)
        stage.fill(vms[-1])
    before = {vm: stage.sums(vm) for vm in vms}
    front = stage.cloud.front
    front.run("sh", "-c", 'pid=$(cat /run/one/oned.pid 2>/dev/null || pgrep -x oned); kill $pid; '
              'while [ -e "/proc/$pid" ]; do sleep 0.2; done')
    stage.one.close()
    front_end.begin(front)
    for vm in vms:
        stage.one.running(vm)
        require(stage.sums(vm) == before[vm], "the content changed")
        stage.off(vm)
        stage.on(vm)
    stage.end(*vms)
    return "the VMs run on, and can be powered off and on"


@for_each_driver
def driver_killed(stage: Stage, driver: Driver) -> str:
    """The driver's process on the node is killed in the middle of a deployment; the deployment is tried again."""
    vm = stage.one.create("vm", stage.template(driver, "killed", NETWORK + GPU))
    # The brackets keep the pattern from its own shell.
    kill = (f'for try in $(seq 600); do for pid in $(pgrep -f -- "-m {driver.name} [v]mm deploy"); do '
            'kill -KILL $pid && echo killed && exit; done; sleep 0.05; done')
    await_that(lambda: "HISTORY_RECORDS" in stage.one.show("vm", vm) and stage.one.show("vm", vm)["HISTORY_RECORDS"],
               "it is scheduled")
    killed = stage.node(vm).run("sh", "-c", kill)
    require("killed" in killed, "the driver's process was not seen")
    stage.await_that(lambda: stage.one.state(vm) in ("ACTIVE BOOT_FAILURE", "ACTIVE RUNNING"), "it fails or runs")
    state = stage.one.state(vm)
    if state != "ACTIVE RUNNING":
        stage.one("onevm", "recover", "--retry", vm)
        stage.one.running(vm)
    stage.end(vm)
    return f"{state}, then RUNNING"


@for_each_driver
def full_datastore(stage: Stage, driver: Driver) -> str:
    """There is no room for what the VM wrote: the action fails and says so, nothing is lost, and it can be tried again
    when there is room."""
    action, then = ("poweroff", "POWEROFF LCM_INIT") if driver is LXDONE else ("undeploy", "UNDEPLOYED LCM_INIT")
    vm = stage.one.create("vm", stage.template(driver, "full", NETWORK), "--hold")
    host = f"{stage.cloud.nodes[0].name}{driver.suffix}"
    stage.one("onevm", "deploy", vm, host, small(driver))
    stage.one.running(vm)
    stage.inside(vm, "head -c 3000000 /dev/urandom > /media/1/content; head -c 60000000 /dev/urandom > /content; sync")
    before = stage.sums(vm)
    with full(stage.node(vm), f"/var/lib/one/datastores/{stage.one.history(vm)['DS_ID']}"):
        stage.one("onevm", action, vm)
        error = stage.await_that(lambda: stage.one.error(vm), f"{action} fails")
        require("space" in error.lower() or "full" in error.lower(), f"{action} fails with {error!r}")
        require("mistake" not in error, error)
    # A node of lxdone that is not done with a disk reports that the VM runs, and tries again after a minute.
    state = stage.await_that(lambda: settled(stage, vm), "it is RUNNING, POWEROFF or failed", 150)
    if state == FAILED_UNDEPLOY:
        stage.one("onevm", "recover", "--retry", vm)
        stage.await_that(lambda: stage.one.state(vm) == then, "it is undeployed")
        stage.on(vm)
        require(stage.sums(vm) == before, "the content changed")
    else:
        if state != "ACTIVE RUNNING":
            stage.on(vm)
        require(stage.sums(vm) == before, "the content changed")
        stage.do(vm, action, then=then)
    stage.end(vm)
    return f"{action}: {error.split(': ', 1)[-1][:160]}; {state}"


@contextmanager
def full(machine: Machine, path: str) -> Iterator[None]:
    """Leave a file system 16 MiB of room within the block."""
    machine.run("sh", "-c", 'mount -o "remount,size=$(($(df --output=used -k "$1" | tail -n 1) + 16384))k" "$1"', "sh",
                path)
    try:
        yield
    finally:
        machine.run("mount", "-o", f"remount,size={setup.SMALL_SIZE}", path)


def small(driver: Driver) -> str:
    return f"{driver.name}-small"


def settled(stage: Stage, vm: str) -> str:
    """Return the state of a VM whose action failed, once monitoring has told oned whether its container runs."""
    state = stage.one.state(vm)
    if state == "ACTIVE RUNNING":
        try:
            stage.inside(vm, "true")
        except MachineFailed:
            return ""
    return state if state in ("ACTIVE RUNNING", "POWEROFF LCM_INIT", FAILED_UNDEPLOY) else ""
