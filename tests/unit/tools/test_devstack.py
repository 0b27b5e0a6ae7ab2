# SPDX-License-Identifier: Apache-2.0
"""DevStack's plug-in, sourced as DevStack does it, with DevStack's own functions and commands recorded."""

import os
import subprocess
import tempfile
from pathlib import Path

import testtools
from oslo_config import cfg

from nova_lxd_ext import conf
from nova_lxd_ext.privsep import context

DIRECTORY = Path(__file__).resolve().parents[3] / "devstack"
# DevStack's functions that the plug-in calls; LACKING names an engine's command that fails as long as it is not made.
DEVSTACK = """
set -eu
declare -A GITDIR=([nova-lxd-ext]=/opt/stack/nova-lxd-ext)
record() { printf '%s\\n' "$*" >> "$RECORD"; }
is_service_enabled() { [[ " $SERVICES " == *" $1 "* ]]; }
echo_summary() { :; }
die() { echo "${@:2}" >&2; exit 1; }
install_package() { record install_package "$@"; }
setup_develop() { record setup_develop "$@"; }
iniset() { record iniset "$@"; }
grep() { return 1; }
sudo() {
    record "$@"
    if [[ "$1" == tee ]]; then cat > /dev/null; fi
    if [[ -n "$LACKING" && "${*:2}" == $LACKING* ]]; then return 1; fi
}
source "$DIRECTORY/settings"
source "$DIRECTORY/plugin.sh" "$@"
"""
NOVA_CONF = "/etc/nova/nova.conf"


class Refused(Exception):
    """The plug-in ended DevStack."""


class DevstackTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)

    def phase(self, *phase: str, **settings: str) -> list[str]:
        """Return what the plug-in calls in a phase, in order.

        :raises Refused: with the plug-in's words
        """
        record = self.directory / "record"
        record.write_text("")
        environment = {
            "PATH": os.environ["PATH"], "RECORD": str(record), "DIRECTORY": str(DIRECTORY), "LACKING": "",
            "SERVICES": "n-api n-cpu", "VIRT_DRIVER": "lxd", "STACK_USER": "stack", "os_VENDOR": "Debian",
            "NOVA_CONF": NOVA_CONF, "NOVA_CPU_CONF": "/etc/nova/nova-cpu.conf", "NOVA_BIN_DIR": "/opt/bin", **settings}
        done = subprocess.run(("bash", "-c", DEVSTACK, "plugin", *phase), env=environment, text=True,
                              capture_output=True, check=False)
        if done.returncode:
            raise Refused(done.stderr)
        return record.read_text().splitlines()

    def nova_conf(self, calls: list[str]) -> cfg.ConfigOpts:
        """The driver's reading of what was set; oslo.config refuses a value that an option cannot have."""
        file = self.directory / "nova.conf"
        settings = [call.removeprefix(f"iniset {NOVA_CONF} ").split(" ", 2) for call in calls
                    if call.startswith(f"iniset {NOVA_CONF} ")]
        file.write_text("".join(f"[{group}]\n{key} = {value}\n" for group, key, value in settings))
        read = cfg.ConfigOpts()
        conf.register(read)
        read.register_opt(cfg.StrOpt("compute_driver"))
        read.register_opt(cfg.StrOpt("helper_command"), group=context.cfg_section)
        read(["--config-file", str(file)])
        known = {("DEFAULT", "compute_driver"), (context.cfg_section, "helper_command"),
                 *(("lxd", option.dest) for option in conf.ALL)}
        self.assertEqual(set(), {(group, key) for group, key, _value in settings} - known)
        return read

    def test_nova_conf_is_one_that_the_driver_understands(self) -> None:
        found = self.nova_conf(self.phase("stack", "post-config", LXD_STORAGE_POOL="fast"))
        self.assertEqual("lxd.LXDDriver", found.compute_driver)
        self.assertEqual("fast", found.lxd.storage_pool)
        self.assertEqual(conf.CONF.lxd.owners_dir, found.lxd.owners_dir)
        self.assertIsNone(found.lxd.migration_address)
        self.assertEqual("sudo /opt/bin/privsep-helper --config-file /etc/nova/nova-cpu.conf",
                         found[context.cfg_section].helper_command)

    def test_servers_may_leave_where_the_engine_listens(self) -> None:
        calls = self.phase("stack", "post-config", LXD_MIGRATION_ADDRESS="https://192.0.2.11:8443")
        self.assertEqual("https://192.0.2.11:8443", self.nova_conf(calls).lxd.migration_address)
        self.assertIn("lxc config set core.https_address 192.0.2.11:8443", calls)

    def test_a_pool_is_made_when_it_is_not_there(self) -> None:
        create = "incus storage create default btrfs"
        settings = {"LXD_ENGINE": "incus", "LXD_STORAGE_DRIVER": "btrfs"}
        self.assertIn(create, self.phase("stack", "post-config", LACKING="storage show", **settings))
        self.assertNotIn(create, self.phase("stack", "post-config", **settings))

    def test_an_engine_that_is_there_stays_as_it_is(self) -> None:
        self.assertEqual(["lxc version", "setup_develop /opt/stack/nova-lxd-ext nova"], self.phase("stack", "install"))

    def test_one_that_is_not_there_is_installed(self) -> None:
        for vendor, engine, expected in (
                ("Debian", "lxd", "install_package lxd"), ("Ubuntu", "lxd", "snap install lxd"),
                ("Ubuntu", "incus", "install_package incus")):
            calls = self.phase("stack", "install", LACKING="version", os_VENDOR=vendor, LXD_ENGINE=engine)
            self.assertIn(expected, calls)
            self.assertEqual("setup_develop /opt/stack/nova-lxd-ext nova", calls[-1])

    def test_nothing_happens_for_other_drivers_services_and_phases(self) -> None:
        self.assertEqual([], self.phase("stack", "install", VIRT_DRIVER="libvirt"))
        self.assertEqual([], self.phase("stack", "post-config", SERVICES="n-api"))
        self.assertEqual([], self.phase("unstack"))

    def test_an_engine_that_does_not_exist_is_refused(self) -> None:
        error = self.assertRaises(Refused, self.phase, "stack", "install", LXD_ENGINE="docker")
        self.assertIn("LXD_ENGINE is 'docker'", str(error))
