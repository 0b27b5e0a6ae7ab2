"""The front-end: oned from a source tree, configured for a small cloud, with both drivers installed by their manual."""

import re
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

from tools.oned.machine import CHECKOUT, Machine, MachineFailed, await_that

STARTS = 3  # oned ends itself where one of its drivers takes more than a few seconds, as on a machine that is busy
PROGRAM = "src/nebula/oned"
OPTIONS = ("sqlite=yes", "mysql=no", "grpc=no", "svncterm=no", "systemd=no")
# The bundled gems that the source does not have; Debian's stand in for all that is used of them.
STUBS = {"load_opennebula_paths.rb": "# Debian's own gems are used\n", "parse-cron.rb": "class CronParser; end\n"}
SETTINGS = {"MONITORING_INTERVAL_DATASTORE": "15", "SCHED_MAX_WND_TIME": "2", "SCHED_MAX_WND_LENGTH": "1",
            "SCHED_RETRY_TIME": "5", "MAX_ACTIONS_PER_HOST": "10", "LISTEN_ADDRESS": '"127.0.0.1"'}


def build(source: Path) -> None:
    """Build a source tree of OpenNebula; does nothing if it was built before."""
    if (source / PROGRAM).exists():
        return
    if shutil.which("scons") is None:
        raise FileNotFoundError("scons is not on this machine; the page on development names the packages to install")
    with (source / "build.log").open("wb") as log:
        subprocess.run(["nice", "scons", "-j2", *OPTIONS], cwd=source, stdout=log, stderr=log, check=True)


def install(machine: Machine, source: Path) -> None:
    """OpenNebula into the machine's own layers."""
    machine.run("sh", "-c", f"cd {source} && ./install.sh -u oneadmin -g oneadmin")
    site = machine.run("ruby", "-e", 'puts RbConfig::CONFIG["sitedir"]').strip()
    for name, text in STUBS.items():
        put(machine, f"{site}/{name}", text)


def put(machine: Machine, path: str, text: str, mode: str = "644", owner: str = "root") -> None:
    machine.run("sh", "-c", 'mkdir -p "$(dirname "$1")"; cat > "$1"; chmod "$2" "$1"; chown "$3:" "$1"', "sh", path,
                mode, owner, given=text)


def configure(machine: Machine) -> None:
    text = machine.run("cat", "/etc/one/oned.conf")
    for key, value in SETTINGS.items():
        text, count = re.subn(rf"(?m)^#?{key}( *)=.*$", f"{key} = {value}", text, count=1)
        if not count:
            text += f"{key} = {value}\n"
    text += "\nMANAGER_TIMER = 5\n"
    put(machine, "/etc/one/oned.conf", text)
    monitoring = machine.run("cat", "/etc/one/monitord.conf")
    put(machine, "/etc/one/monitord.conf", adjusted(monitoring, machine.address))
    for driver in ("lxdone", "onedock"):
        machine.run("env", f"PYTHONPATH={CHECKOUT}", sys.executable, "-m", f"{driver}.install", "front-end", "--apply")
        script = f"#!/bin/sh\nPYTHONPATH={CHECKOUT} exec {sys.executable} -m {driver} \"$@\"\n"
        put(machine, f"/usr/local/bin/{driver}", script, "755")


def adjusted(text: str, address: str) -> str:
    """The monitoring daemon's configuration, with short periods and an address that nodes reach."""
    text = re.sub(r'(?m)^( *)ADDRESS( *)=.*$', rf'\1ADDRESS = "{address}",', text, count=1)
    text = re.sub(r'(?m)^( *)MONITOR_ADDRESS( *)=.*$', rf'\1MONITOR_ADDRESS = "{address}",', text, count=1)
    for key, seconds in {"MONITOR_HOST": 20, "MONITOR_VM": 15, "STATE_VM": 5, "SYSTEM_HOST": 60}.items():
        text = re.sub(rf"(?m)^( *){key}( *)=( *)\d+", rf"\1{key} = {seconds}", text)
    text = re.sub(r"(?m)^#?MONITORING_INTERVAL_HOST.*$", "MONITORING_INTERVAL_HOST = 30", text)
    return re.sub(r"(?m)^#?MANAGER_TIMER.*$", "MANAGER_TIMER = 5", text)


def start(machine: Machine) -> None:
    machine.run("sh", "-c", 'mkdir -p ~oneadmin/.one; echo "oneadmin:$1" > ~oneadmin/.one/one_auth; '
                'chown -R oneadmin: ~oneadmin; chmod 600 ~oneadmin/.one/one_auth', "sh", secrets.token_hex(8))
    for last in (False,) * (STARTS - 1) + (True,):
        machine.begin("oned", "env", "HOME=/var/lib/one", "ONE_MAD_DEBUG=1", "/usr/bin/oned", "-f", user="oneadmin")
        try:
            return await_that(lambda: answers(machine), "oned answers", 90)
        except MachineFailed:
            if last:
                raise


def answers(machine: Machine) -> bool:
    try:
        cli(machine, "oneuser", "show", "0")
    except MachineFailed:
        return False
    return True


def cli(machine: Machine, *words: str, given: str = "") -> str:
    """A command of OpenNebula's, as oneadmin."""
    return machine.run("env", "HOME=/var/lib/one", "LANG=C.UTF-8", *words, user="oneadmin", given=given)
