# SPDX-License-Identifier: Apache-2.0
"""A node: LXD, Docker, sshd and both drivers, as their manual has them."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.oned.front_end import install_ruby, put
from tools.oned.machine import CHECKOUT, Machine, MachineFailed, await_that

COMMANDS = {"lxdone": "-m lxdone", "onedock": "-m onedock", "lxdone-monitor": "-m onedriver.node.monitorclient",
            "onedock-monitor": "-m onedriver.node.monitorclient", "lxdone-install": "-m lxdone.install",
            "onedock-install": "-m onedock.install",
            "containerhost": "-c 'import sys; from containerhost.operator.cli import main; sys.exit(main())'",
            "containerhost-ociruntime": "-c 'import sys; from containerhost.engines.docker.ociruntime import main; "
                                        "sys.exit(main())'"}
# sudo drops the environment: commands find the emulated host by themselves.
COMMAND = """#!/bin/sh
export PATH=/sys/fakehost/bin:$PATH FAKEHOST_CONTROL=/sys/fakehost/control PYTHONPATH={checkout}
exec {python} {words} "$@"
"""
BRIDGE = "onebr"
MEMLOCK = 8 << 20
SUDO = ("oneadmin ALL=(ALL:ALL) NOPASSWD: ONE_NET, ONE_OVS\n"
        "oneadmin ALL=(root) NOPASSWD: /usr/local/bin/lxdone vmm *, /usr/local/bin/lxdone probe *\n"
        "oneadmin ALL=(root) NOPASSWD: " + ", ".join(f"/usr/local/bin/onedock {word} *" for word in (
            "vmm", "probe", "leave", "drop", "lock", "image")) + "\n")


# Open vSwitch in user space, as kernels without its module need it.
SWITCH = """
set -e
mkdir -p /etc/openvswitch /run/openvswitch
ovsdb-tool create /etc/openvswitch/conf.db /usr/share/openvswitch/vswitch.ovsschema
ovsdb-server /etc/openvswitch/conf.db --remote=punix:/run/openvswitch/db.sock --detach --no-chdir --pidfile
ovs-vsctl --no-wait init
exec ovs-vswitchd --pidfile
"""
SWITCH_BRIDGE = "oneovs"


def start(machine: Machine, source: Path, nodes: Sequence[Machine]) -> None:
    """:param source: of OpenNebula, which has the lines for sudo of its own network drivers
    :param nodes: all of them
    """
    machine.run("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/var/tmp")  # noqa: S108  (oned's scripts go there)
    for name, words in COMMANDS.items():
        put(machine, f"/usr/local/bin/{name}", COMMAND.format(checkout=CHECKOUT, python=sys.executable, words=words),
            "755")
    machine.run("cp", str(CHECKOUT / "bin/containerhost-docker-runtime"), "/usr/local/bin/")
    install_ruby(machine)
    put(machine, "/etc/sudoers.d/opennebula", (source / "share/pkgs/sudoers/debian/opennebula").read_text(), "440")
    put(machine, "/etc/sudoers.d/opennebula-node", SUDO, "440")
    machine.run("install", "-d", "-o", "oneadmin", "-g", "oneadmin", "-m", "750", "/var/lib/one/datastores")
    machine.run("ip", "link", "add", BRIDGE, "type", "bridge")
    machine.run("ip", "link", "set", BRIDGE, "up")
    machine.begin_ssh()
    start_switch(machine)
    start_docker(machine)
    start_lxd(machine, nodes)


def start_switch(machine: Machine) -> None:
    machine.begin("switch", "sh", "-c", SWITCH)
    await_that(lambda: answers(machine, "ovs-vsctl", "--timeout=5", "--may-exist", "add-br", SWITCH_BRIDGE, "--", "set",
                               "bridge", SWITCH_BRIDGE, "datapath_type=netdev", "fail_mode=standalone"),
               f"Open vSwitch of {machine.name} answers")


def start_docker(machine: Machine) -> None:
    home = machine.home / "docker"
    home.mkdir(mode=0o711)
    (home / "daemon.json").write_text("{}")
    put(machine, "/etc/onedock.toml", f'endpoint = "{socket(machine)}"\nmemlock = "{MEMLOCK}"\nstop_timeout = 5\n')
    begin_docker(machine)


def socket(machine: Machine) -> str:
    return f"unix://{machine.home}/docker/docker.sock"


def begin_docker(machine: Machine) -> None:
    home = machine.home / "docker"
    machine.begin("dockerd", "dockerd", "--host", socket(machine), "--data-root", f"{home}/data", "--exec-root",
                  f"{home}/exec", "--pidfile", f"{home}/pid", "--config-file", f"{home}/daemon.json", "--live-restore",
                  "--bridge", "none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false",
                  "--add-runtime", "containerhost=/usr/local/bin/containerhost-docker-runtime")
    await_that(lambda: answers(machine, "docker", "--host", socket(machine), "info"),
               f"dockerd of {machine.name} answers")


def answers(machine: Machine, *command: str) -> bool:
    try:
        machine.run(*command)
    except MachineFailed:
        return False
    return True


def start_lxd(machine: Machine, nodes: Sequence[Machine]) -> None:
    home = machine.home / "lxd"
    home.mkdir(mode=0o711)
    begin_lxd(machine)
    machine.run("env", f"LXD_DIR={home}", "lxc", "storage", "create", "default", "btrfs", "size=6GiB")
    machine.run("env", f"LXD_DIR={home}", "lxc", "config", "set", "core.https_address", f"{machine.address}:8443")
    peers = [address(each) for each in nodes]
    put(machine, "/etc/lxdone.toml", f'endpoint = "{home}/unix.socket"\nstorage_pool = "default"\n'
        f'migration_address = "{address(machine)}"\nmigration_peers = {json.dumps(peers)}\n'
        f'memlock = "{MEMLOCK}"\nstop_timeout = 10\n')


def address(machine: Machine) -> str:
    """Return the address at which other nodes reach the machine's LXD."""
    return f"https://{machine.address}:8443"


def begin_lxd(machine: Machine) -> None:
    home = machine.home / "lxd"
    machine.begin("lxd", "env", f"LXD_DIR={home}", "sh", "-c", 'echo $$ > "$0/pid"; exec lxd --group root', str(home))
    machine.run("env", f"LXD_DIR={home}", "lxd", "waitready", "--timeout=60")
