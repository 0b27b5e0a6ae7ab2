"""Contextualisation, addresses, consoles."""

import json

from tools.oned.scenarios import for_each_driver, scenario
from tools.oned.stage import FUNCTION, LXDONE, NETWORK, ONEDOCK, Driver, Stage, require

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGz somebody@somewhere"
SCRIPT = "echo it's \\\"started\\\" $HOME > /tmp/started"
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
    require("echo it's \"started\" $HOME > /tmp/started" in text, f"the script became {text}")
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
def monitored(stage: Stage, driver: Driver) -> str:
    """``onevm show`` tells of CPU and memory; the host tells of its free space and devices."""
    vm = stage.vm(driver, "monitored")
    found = stage.await_that(lambda: known(stage, vm), "memory and network are told")
    host = json.loads(stage.one("onehost", "show", "--json", stage.one.host(vm)))["HOST"]["HOST_SHARE"]
    require(int(host["FREE_DISK"]) > 0 and len(host["PCI_DEVICES"]["PCI"]) >= 4, f"the host has {host['FREE_DISK']}")
    stage.end(vm)
    return f"MEMORY {found['MEMORY']}, {len(host['PCI_DEVICES']['PCI'])} PCI devices"


def known(stage: Stage, vm: str) -> dict[str, str]:
    found = stage.one.show("vm", vm)["MONITORING"]
    return dict(found) if found and int(found.get("MEMORY", 0)) > 0 and "NETTX" in found else {}
