# SPDX-License-Identifier: Apache-2.0
"""Contextualisation, addresses, consoles."""

import json

from tools.oned.scenarios import for_each_driver, scenario
from tools.oned.scenarios.life import begun_anew, first_process
from tools.oned.stage import FUNCTION, LXDONE, NETWORK, ONEDOCK, Driver, Stage, require

FOREIGN = "10.4.0.200"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGz somebody@somewhere"
SCRIPT = "echo it's \\\"started\\\" > /tmp/started"
VISIT = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 10) as visitor:
    print(visitor.recv(12).decode())
"""


@for_each_driver
def context(stage: Stage, driver: Driver) -> str:
    words = f',SSH_PUBLIC_KEY="{KEY}",START_SCRIPT="{SCRIPT}",SET_HOSTNAME="worker"'
    vm = stage.vm(driver, "context", NETWORK + FUNCTION, context=words)
    found = stage.one.show("vm", vm)["TEMPLATE"]
    nic = found["NIC"]
    text = stage.inside(vm, ". /context/context.sh; echo \"$ETH0_IP $ETH0_MAC\"; echo \"$SSH_PUBLIC_KEY\"; "
                        "echo \"$START_SCRIPT\"; hostname")
    require(f"{nic['IP']} {nic['MAC']}" in text and KEY in text, f"context.sh says {text}")
    require("echo it's \"started\" > /tmp/started" in text, f"the script became {text}")
    require(nic["MAC"] in stage.inside(vm, "cat /sys/class/net/eth0/address"), "it has another MAC")
    if driver is ONEDOCK:
        require(nic["IP"] in stage.inside(vm, "ip address show dev eth0"), "it does not have its address")
        require("worker" in text, f"its name is {text.splitlines()[-1]}")
    stage.one("onevm", "updateconf", vm, stage.one.file('CONTEXT=[NETWORK="YES",NEW="a value"]\n'), "--append")
    stage.one.running(vm)
    require("NEW='a value'" in stage.inside(vm, "cat /context/context.sh"), "the new variable is not there")
    stage.end(vm)
    return f"{nic['IP']}, key, script with quotes, updateconf"


@scenario
def console(stage: Stage) -> str:
    vm = stage.vm(LXDONE, "console", 'GRAPHICS=[TYPE="VNC",LISTEN="127.0.0.1"]\n')
    port = stage.one.show("vm", vm)["TEMPLATE"]["GRAPHICS"]["PORT"]
    node = stage.node(vm)

    def greeting() -> str:
        return node.run("sh", "-c", f"python3 -c '{VISIT}' 127.0.0.1 {port} 2> /dev/null || true")

    told = stage.await_that(greeting, "the console answers")
    require(told.startswith("RFB 003.008"), f"the console says {told!r}")
    stage.off(vm)
    require(not greeting(), "the console is there while the VM is off")
    stage.on(vm)
    stage.await_that(greeting, "the console is back")
    stage.end(vm)
    return f"{told.strip()} at port {port}"


@for_each_driver
def security_groups(stage: Stage, driver: Driver) -> str:
    """Rules of OpenNebula's own driver, which finds a NIC by its name on the host; they hold after a restart."""
    node = stage.cloud.nodes[0]
    guarded, other = stage.vms_on(driver, node, 'NIC=[NETWORK="guarded"]\n', 'NIC=[NETWORK="guarded"]\n')
    address = addressed(stage, guarded)
    addressed(stage, other)
    for _ in range(2):
        told = reached(stage, other, guarded, address)
        require(told == ["80"], f"of 80, 81 and ping these are let in: {told}")
        reboot(stage, guarded)
    own = addressed(stage, other)
    from_host(stage, other, f"ip address delete {own}/24 dev eth0 && ip address add {FOREIGN}/24 dev eth0")
    require(not reached(stage, other, guarded, address), f"{FOREIGN}, which is not its own, is let out")
    from_host(stage, other, f"ip address delete {FOREIGN}/24 dev eth0 && ip address add {own}/24 dev eth0")
    require(reached(stage, other, guarded, address) == ["80"], f"{own} is not let out any more")
    stage.end(guarded, other)
    return "port 80 and nothing else, also after a restart; no address of others"


def reached(stage: Stage, visitor: str, vm: str, address: str) -> list[str]:
    """Return which of the ports 80 and 81 and ``ping`` a VM lets another reach."""
    stage.inside(vm, "for port in 80 81; do nc -l -p $port > /dev/null 2>&1 < /dev/null & done")
    return stage.inside(visitor, f"for port in 80 81; do nc -w 3 {address} $port < /dev/null 2> /dev/null "
                        f"&& echo $port; done; ping -c 1 -W 2 {address} > /dev/null && echo ping; true").split()


def from_host(stage: Stage, vm: str, script: str) -> None:
    """Run something in a VM's network namespace with all rights there, which Docker's guests do not have."""
    node, driver = stage.node(vm), stage.driver(vm)
    if driver is ONEDOCK:
        pid = stage.engine(node, driver, "inspect", "--format", "{{.State.Pid}}", f"one-{vm}").strip()
    else:
        pid = stage.engine(node, driver, "list", f"one-{vm}", "--format", "csv", "--columns", "p").strip()
    node.run("nsenter", f"--target={pid}", "--net", "sh", "-c", script)


def reboot(stage: Stage, vm: str) -> None:
    """Restart a VM by force, and give its guest its address."""
    first = first_process(stage, vm)
    stage.do(vm, "reboot", "--hard")
    stage.await_that(lambda: begun_anew(stage, vm, first), "it runs again")
    addressed(stage, vm)


def addressed(stage: Stage, vm: str) -> str:
    """Give the guest its address, which onedock has done already.

    :returns: it
    """
    address = str(stage.one.show("vm", vm)["TEMPLATE"]["NIC"]["IP"])
    if stage.driver(vm) is LXDONE:
        stage.inside(vm, f"ip address replace {address}/24 dev eth0 && ip link set eth0 up")
    return address


@for_each_driver
def open_vswitch(stage: Stage, driver: Driver) -> str:
    """Ports of one VLAN reach each other, those of another do not, also after a restart."""
    vms = stage.vms_on(driver, stage.cloud.nodes[1], *(f'NIC=[NETWORK="{network}"]\n' for network in (
        "switched", "switched", "switched-apart")))
    first, second, apart = vms
    address = addressed(stage, first)
    for vm in (second, apart):
        addressed(stage, vm)
    for _ in range(2):
        require(reaches(stage, second, address), f"{address} is not reached within its VLAN")
        require(not reaches(stage, apart, address), f"{address} is reached from another VLAN")
        reboot(stage, first)
    stage.end(*vms)
    return "VLAN 7 and 8"


@for_each_driver
def vxlan(stage: Stage, driver: Driver) -> str:
    """One network over two nodes."""
    vms = [vm for node in stage.cloud.nodes for vm in stage.vms_on(driver, node, 'NIC=[NETWORK="tunnelled"]\n')]
    addresses = [addressed(stage, vm) for vm in vms]
    stage.await_that(lambda: reaches(stage, vms[1], addresses[0]), f"{addresses[0]} is reached from the other node")
    stage.end(*vms)
    return f"{addresses[0]} from the other node"


def reaches(stage: Stage, vm: str, address: str) -> bool:
    return "yes" in stage.inside(vm, f"ping -c 2 -W 3 {address} > /dev/null && echo yes; true")


@for_each_driver
def monitored(stage: Stage, driver: Driver) -> str:
    """``onevm show`` tells of CPU and memory; the host tells of its free space and devices."""
    vm = stage.vm(driver, "monitored")
    found = stage.await_that(lambda: known(stage, vm), "memory and network are told")
    host = json.loads(stage.one("onehost", "show", "--json", stage.one.host(vm)))["HOST"]["HOST_SHARE"]
    free = host["DATASTORES"]["FREE_DISK"]
    require(int(free) > 0 and len(host["PCI_DEVICES"]["PCI"]) >= 4, f"the host has {free} MiB")
    stage.end(vm)
    return f"MEMORY {found['MEMORY']}, {len(host['PCI_DEVICES']['PCI'])} PCI devices"


def known(stage: Stage, vm: str) -> dict[str, str]:
    found = stage.one.show("vm", vm)["MONITORING"]
    return dict(found) if found and int(found.get("MEMORY", 0)) > 0 and "NETTX" in found else {}
