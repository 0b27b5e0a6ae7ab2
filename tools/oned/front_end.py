# SPDX-License-Identifier: Apache-2.0
"""The front-end: oned from a source tree, configured for a small cloud, with both drivers installed by their manual."""

import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tools.oned.machine import CHECKOUT, Machine, MachineFailed, await_that

LOCK = "/var/lock/one/one"  # stays where oned ended itself
PORT = 2633
START_TIMEOUT = 180  # s
STARTS = 5  # oned ends itself where one of its drivers takes more than a few seconds, as on a machine that is busy
BUILT = ".built"  # in the source tree: the build came to its end
COMPILATION = re.compile(rb"^g\+\+ .* -c ", re.M)
PROGRESS_INTERVAL = 30  # s
OPTIONS = ("sqlite=yes", "mysql=no", "grpc=no", "svncterm=no", "systemd=no")
# The bundled gems that the source does not have; Debian's stand in for all that is used of them.
STUBS = {"load_opennebula_paths.rb": "# Debian's own gems are used\n"
                                     "RUBY_LIB_LOCATION = '/usr/lib/one/ruby' unless defined?(RUBY_LIB_LOCATION)\n",
         "parse-cron.rb": "class CronParser; end\n"}
SETTINGS = {"MONITORING_INTERVAL_DATASTORE": "15", "MONITORING_INTERVAL_MARKET": "15", "SCHED_MAX_WND_TIME": "2",
            "SCHED_MAX_WND_LENGTH": "1", "SCHED_RETRY_TIME": "5", "MAX_ACTIONS_PER_HOST": "10",
            "LISTEN_ADDRESS": '"127.0.0.1"'}

# Drivers of OpenNebula's own that nothing here uses, as bench/opennebula_peer does that for LXC: oned waits for each of
# its drivers at its start.
IN_TREE = re.compile(r'(?ms)^VM_MAD = \[\s*NAME\s*= "(?:kvm|qemu)".*?\n\]\n')


def build(source: Path, say: Callable[[str], None]) -> None:
    """Build a source tree of OpenNebula; does nothing if it was built before, and goes on with a build that was ended.

    :raises MachineFailed: it cannot be built
    """
    if (source / BUILT).exists():
        return
    if shutil.which("scons") is None:
        raise MachineFailed("scons is not on this machine: install what is missing with tools/install opennebula")
    log = source / "build.log"
    say(f"OpenNebula is built, which takes some six minutes on two cores ({log})")
    with log.open("wb") as file:
        scons = subprocess.Popen(["nice", "scons", f"-j{os.cpu_count()}", *OPTIONS], cwd=source, stdout=file,
                                 stderr=file)
        while scons.poll() is None:
            try:
                scons.wait(PROGRESS_INTERVAL)
            except subprocess.TimeoutExpired:
                say(f"OpenNebula is built: {len(COMPILATION.findall(log.read_bytes()))} files compiled")
    if scons.returncode:
        raise MachineFailed(f"OpenNebula was not built: {log} ends with: {log.read_text(errors='replace')[-2000:]}")
    (source / BUILT).touch()


def install(machine: Machine, source: Path) -> None:
    """OpenNebula into the machine's own layers."""
    machine.run("sh", "-c", f"cd {source} && ./install.sh -u oneadmin -g oneadmin")
    install_ruby(machine)


def install_ruby(machine: Machine) -> None:
    """Install what OpenNebula's scripts load, on a front-end and on nodes."""
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
    text = IN_TREE.sub("", text) + "\nMANAGER_TIMER = 5\n"
    put(machine, "/etc/one/oned.conf", text)
    monitoring = machine.run("cat", "/etc/one/monitord.conf")
    put(machine, "/etc/one/monitord.conf", adjusted(monitoring, machine.address))
    for driver in ("lxdone", "onedock"):
        machine.run("env", f"PYTHONPATH={CHECKOUT}", sys.executable, "-m", f"{driver}.install", "front-end", "--apply")
        script = f"#!/bin/sh\nPYTHONPATH={CHECKOUT} exec {sys.executable} -m {driver} \"$@\"\n"
        put(machine, f"/usr/local/bin/{driver}", script, "755")


def adjusted(text: str, address: str) -> str:
    """Return the monitoring daemon's configuration, with short periods and an address that nodes reach."""
    text = re.sub(r'(?m)^( *)ADDRESS( *)=.*$', rf'\1ADDRESS = "{address}",', text, count=1)
    text = re.sub(r'(?m)^( *)MONITOR_ADDRESS( *)=.*$', rf'\1MONITOR_ADDRESS = "{address}",', text, count=1)
    for key, seconds in {"MONITOR_HOST": 20, "MONITOR_VM": 15, "STATE_VM": 5, "SYSTEM_HOST": 60}.items():
        text = re.sub(rf"(?m)^( *){key}( *)=( *)\d+", rf"\1{key} = {seconds}", text)
    text = re.sub(r"(?m)^#?MONITORING_INTERVAL_HOST.*$", "MONITORING_INTERVAL_HOST = 30", text)
    return re.sub(r"(?m)^#?MANAGER_TIMER.*$", "MANAGER_TIMER = 5", text)


def start(machine: Machine) -> None:
    machine.run("sh", "-c", 'mkdir -p ~oneadmin/.one; echo "oneadmin:$1" > ~oneadmin/.one/one_auth; '
                'chown -R oneadmin: ~oneadmin; chmod 600 ~oneadmin/.one/one_auth', "sh", secrets.token_hex(8))
    begin(machine)


def begin(machine: Machine) -> None:
    """Start oned, and everything that it starts itself.

    :raises MachineFailed: it ended itself every time
    """
    for last in (False,) * (STARTS - 1) + (True,):
        machine.run("rm", "-f", LOCK)
        oned = machine.begin("oned", "env", "HOME=/var/lib/one", "ONE_MAD_DEBUG=1", "/usr/bin/oned", "-f",
                             user="oneadmin")
        await_that(lambda oned=oned: oned.poll() is not None or listens(machine, PORT), "oned answers",
                   START_TIMEOUT, 1)
        if oned.poll() is None:
            return
        if last:
            # Early errors go to standard error, before there is a log.
            said = machine.run("sh", "-c", 'tail -n 5 "$0" /var/log/one/oned.log 2>&1 || true',
                               f"{machine.home}/oned.log")
            raise MachineFailed(f"oned ended: {said}")


def listens(machine: Machine, port: int) -> bool:
    return "yes" in machine.run("bash", "-c", f"(: < /dev/tcp/127.0.0.1/{port}) 2> /dev/null && echo yes || true")


def cli(machine: Machine, *words: str, given: str = "") -> str:
    """Run a command of OpenNebula's, as oneadmin."""
    return machine.run("env", "HOME=/var/lib/one", "LANG=C.UTF-8", *words, user="oneadmin", given=given)
