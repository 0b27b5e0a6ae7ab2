"""A node: LXD, Docker, sshd and both drivers, as their manual has them."""

import sys
from pathlib import Path

from tools.oned.front_end import put
from tools.oned.machine import CHECKOUT, Machine, await_that

COMMANDS = {"lxdone": "-m lxdone", "onedock": "-m onedock", "lxdone-monitor": "-m onedriver.node.monitorclient",
            "onedock-monitor": "-m onedriver.node.monitorclient", "lxdone-install": "-m lxdone.install",
            "onedock-install": "-m onedock.install",
            "containerhost-ociruntime": "-c 'import sys; from containerhost.ociruntime import main; sys.exit(main())'"}
# sudo drops the environment: commands find the emulated host by themselves.
COMMAND = """#!/bin/sh
export PATH=/sys/fakehost/bin:$PATH FAKEHOST_CONTROL=/sys/fakehost/control PYTHONPATH={checkout}
exec {python} {words} "$@"
"""
BRIDGE = "onebr"
MEMLOCK = 8 << 20
SUDO = ("oneadmin ALL=(root) NOPASSWD: /usr/local/bin/lxdone vmm *, /usr/local/bin/lxdone probe *\n"
        "oneadmin ALL=(root) NOPASSWD: " + ", ".join(f"/usr/local/bin/onedock {word} *" for word in (
            "vmm", "probe", "leave", "drop", "lock", "image")) + "\n")


def start(machine: Machine) -> None:
    for name, words in COMMANDS.items():
        put(machine, f"/usr/local/bin/{name}", COMMAND.format(checkout=CHECKOUT, python=sys.executable, words=words),
            "755")
    machine.run("cp", str(CHECKOUT / "bin/containerhost-docker-runtime"), "/usr/local/bin/")
    put(machine, "/etc/sudoers.d/opennebula", SUDO, "440")
    machine.run("ip", "link", "add", BRIDGE, "type", "bridge")
    machine.run("ip", "link", "set", BRIDGE, "up")
    machine.begin_ssh()
    start_docker(machine)
    start_lxd(machine)


def start_docker(machine: Machine) -> None:
    home = machine.home / "docker"
    home.mkdir(mode=0o711)
    socket = f"unix://{home}/docker.sock"
    put(machine, "/etc/onedock.toml", f'endpoint = "{socket}"\nmemlock = "{MEMLOCK}"\nstop_timeout = 5\n')
    machine.begin("dockerd", "dockerd", "--host", socket, "--data-root", f"{home}/data", "--exec-root", f"{home}/exec",
                  "--pidfile", f"{home}/pid", "--config-file", str(empty(home)), "--live-restore", "--bridge", "none",
                  "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false",
                  "--add-runtime", "containerhost=/usr/local/bin/containerhost-docker-runtime")
    await_that((home / "docker.sock").exists, f"dockerd of {machine.name} answers")


def empty(home: Path) -> Path:
    file = home / "daemon.json"
    file.write_text("{}")
    return file


def start_lxd(machine: Machine) -> None:
    home = machine.home / "lxd"
    home.mkdir(mode=0o711)
    there = ("env", f"LXD_DIR={home}")
    machine.begin("lxd", *there, "lxd", "--group", "root")
    machine.run(*there, "lxd", "waitready", "--timeout=60")
    machine.run(*there, "lxc", "storage", "create", "default", "btrfs", "size=6GiB")
    put(machine, "/etc/lxdone.toml", f'endpoint = "{home}/unix.socket"\nstorage_pool = "default"\n'
        f'memlock = "{MEMLOCK}"\nstop_timeout = 10\n')
