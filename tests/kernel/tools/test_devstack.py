# SPDX-License-Identifier: Apache-2.0
"""DevStack's plug-in, sourced as DevStack does it, with DevStack's own functions and commands recorded."""

import json
import os
import socket
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import testtools
from oslo_config import cfg

from nova_lxd_ext import conf
from nova_lxd_ext.privsep import context
from tests.fakehost import description, tree

DIRECTORY = Path(__file__).resolve().parents[3] / "devstack"
# DevStack's functions that the plug-in calls; LACKING names an engine's command that fails as long as it is not made,
# THERE an existing flavor, LISTED the servers of the host; MADE shows whether the plug-in created the pool.
DEVSTACK = """
set -eu
declare -A GITDIR=([nova-lxd-ext]=${CHECKOUT:-/opt/stack/nova-lxd-ext})
record() { printf '%s\\n' "$*" >> "$RECORD"; }
is_service_enabled() { [[ " $SERVICES " == *" $1 "* ]]; }
echo_summary() { :; }
die() { echo "${@:2}" >&2; exit 1; }
install_package() { record install_package "$@"; }
setup_develop() { record setup_develop "$@"; }
iniset() { record iniset "$@"; }
iniadd_literal() { record iniadd_literal "$@"; }
async_wait() { record async_wait "$@"; }
stop_process() { record stop_process "$@"; }
timeout() { "${@:2}"; }
openstack() {
    record openstack "$@" ${OS_USERNAME:+as $OS_USERNAME}
    case "$*" in *"server list"*) printf "$LISTED" ;; *"flavor show"*) [[ "$*" == *"$THERE" ]] ;; esac
}
grep() { return 1; }
sudo() {
    record "$@"
    case "$*" in
        tee*) cat > /dev/null ;;
        *" list --format csv --columns n,user.nova.uuid") printf 'instance-1,0c0ffee0\nother,\n' ;;
        *" storage get "*) echo "$MADE" ;;
        *" image list "*) printf 'nova-1\nsomeones\nnova-2\n' ;;
    esac
    if [[ -n "$LACKING" && "${*:2}" == $LACKING* ]]; then return 1; fi
}
source "$DIRECTORY/settings"
source "$DIRECTORY/plugin.sh" "$@"
"""
NOVA_CONF = "/etc/nova/nova.conf"
TEMPEST_CONF = "/etc/tempest.conf"


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
            "LISTED": "", "THERE": "none", "MADE": "", "LXD_IMAGE": "", "LXD_DEVICES": "False",
            "PYTHON": sys.executable, "DATA_DIR": str(self.directory), "TEMPEST_CONFIG": TEMPEST_CONF,
            "NOVA_FILTERS": "ComputeFilter", "NOVA_CONF": NOVA_CONF, "NOVA_CPU_CONF": "/etc/nova/nova-cpu.conf",
            "NOVA_BIN_DIR": "/opt/bin", **settings}
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

    def test_an_lxd_beside_incus_is_not_taken(self) -> None:
        endpoint = self.nova_conf(self.phase("stack", "post-config", LXD_ENGINE="incus")).lxd.endpoint
        self.assertEqual("/var/lib/incus/unix.socket", endpoint)
        self.assertIsNone(self.nova_conf(self.phase("stack", "post-config")).lxd.endpoint)

    def test_limits_that_all_containers_share_are_raised(self) -> None:
        calls = self.phase("stack", "post-config")
        self.assertIn("sysctl --quiet --load /etc/sysctl.d/60-containerhost.conf", calls)
        self.assertTrue([call for call in calls if call.endswith("/etc/sysctl/60-containerhost.conf /etc/sysctl.d/")])

    def test_horizon_has_the_panels_and_boots_from_images(self) -> None:
        horizon = self.directory / "openstack_dashboard/local"
        for name in ("enabled", "local_settings.d"):
            (horizon / name).mkdir(parents=True)
        for services, expected in (("n-api n-cpu", []), ("n-api n-cpu horizon", [
                "enabled/_1045_project_accelerators_panel.py", "enabled/_2155_admin_accelerators_panel.py",
                "local_settings.d/_3120_boot_from_image.py"])):
            self.phase("stack", "post-config", SERVICES=services, HORIZON_DIR=str(self.directory),
                       CHECKOUT=str(DIRECTORY.parent))
            self.assertEqual(expected, sorted(str(file.relative_to(horizon)) for file in horizon.glob("*/*")))

    def test_servers_may_leave_where_the_engine_listens(self) -> None:
        calls = self.phase("stack", "post-config", LXD_MIGRATION_ADDRESS="https://192.0.2.11:8443")
        self.assertEqual("https://192.0.2.11:8443", self.nova_conf(calls).lxd.migration_address)
        self.assertIn("lxc config set core.https_address 192.0.2.11:8443", calls)

    def host_with_devices(self) -> str:
        """Make a directory of programs, where the command of this package sees the small host's devices."""
        root = self.directory / "host"
        tree.write(description.load("small"), root)
        program = self.directory / "containerhost"
        call = "from containerhost.operator.cli import main; main()"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -W ignore -c "{call}" "$@" --root {root}\n')
        program.chmod(0o755)
        return str(self.directory)

    def test_nova_hands_out_the_devices_of_the_host(self) -> None:
        written: dict[tuple[str, str], list[str]] = {}
        for call in self.phase("stack", "post-config", LXD_DEVICES="True", NOVA_BIN_DIR=self.host_with_devices()):
            if call.startswith(("iniset ", "iniadd_literal ")):
                function, _file, section, option, value = call.split(" ", 4)
                # The first replaces existing content, the second requires an existing section.
                self.assertEqual("iniadd_literal" if (section, option) in written else "iniset", function, call)
                written.setdefault((section, option), []).append(value)
        aliases = [json.loads(value) for value in written["pci", "alias"]]
        self.assertEqual(["gpu-nvidia-a100-sxm4-40gb", "infiniband-vf"], [alias["name"] for alias in aliases])
        self.assertEqual({alias["resource_class"] for alias in aliases},
                         {json.loads(value)["resource_class"] for value in written["pci", "device_spec"]})
        self.assertEqual(["True"], written["pci", "report_in_placement"])
        self.assertEqual(["True"], written["filter_scheduler", "pci_in_placement"])
        self.assertEqual(["ComputeFilter,NUMATopologyFilter,PciPassthroughFilter"],
                         written["filter_scheduler", "enabled_filters"])

    def test_a_flavor_of_each_kind_of_device_unless_it_is_there(self) -> None:
        settings = {"LXD_DEVICES": "True", "LXD_FLAVOR_DISK": "3", "NOVA_BIN_DIR": self.host_with_devices()}
        create = "openstack --os-cloud devstack-admin flavor create "
        calls = self.phase("stack", "extra", **settings)
        made = [call.removeprefix(create) for call in calls if call.startswith(create)]
        gpu = next(call for call in made if call.startswith("hpc.gpu-nvidia-a100-sxm4-40gb.x1 "))
        self.assertIn("--disk 3 --property pci_passthrough:alias=gpu-nvidia-a100-sxm4-40gb:1", gpu)
        calls = self.phase("stack", "extra", THERE="hpc.gpu-nvidia-a100-sxm4-40gb.x1", **settings)
        self.assertEqual([call for call in made if call != gpu],
                         [call.removeprefix(create) for call in calls if call.startswith(create)])

    def test_no_devices_and_no_flavors_where_they_are_not_wanted(self) -> None:
        self.assertFalse([call for call in self.phase("stack", "post-config") if " pci " in call])
        self.assertEqual([], self.phase("stack", "extra"))

    def test_nova_conf_is_written_after_neutron_has_written_it(self) -> None:
        calls = self.phase("stack", "post-config")
        first = next(index for index, call in enumerate(calls) if call.startswith("iniset"))
        self.assertLess(calls.index("async_wait configure_neutron_nova"), first)

    def test_an_image_is_made_before_devstack_uploads_it(self) -> None:
        image = self.directory / "new" / "busybox.img"
        self.assertIn("install_package busybox-static", self.phase("stack", "install", LXD_IMAGE=str(image)))
        with tarfile.open(image) as tar:
            self.assertIn("rootfs/bin/busybox", tar.getnames())
        script = 'VIRT_DRIVER=lxd DATA_DIR=/d IMAGE_URLS=http://u; source "$1"; echo "$IMAGE_URLS $DEFAULT_IMAGE_NAME"'
        urls = subprocess.run(("bash", "-euc", script, "bash", DIRECTORY / "settings"), text=True, check=True,
                              env={"PATH": os.environ["PATH"]}, capture_output=True).stdout
        self.assertEqual("http://u,file:///d/nova-lxd-ext/busybox.img busybox\n", urls)

    def test_tempest_is_told_what_the_driver_does(self) -> None:
        calls = self.phase("stack", "test-config", SERVICES="n-cpu tempest")
        self.assertIn(f"iniset {TEMPEST_CONF} compute-feature-enabled pause true", calls)
        self.assertEqual([], self.phase("stack", "test-config"))

    def test_unstack_deletes_servers_by_nova_and_then_what_is_left(self) -> None:
        calls = self.phase("unstack", LISTED="u1\\nu2\\n", OS_USERNAME="demo")
        steps = [f"openstack --os-cloud devstack-admin server list --all-projects --host {socket.gethostname()} "
                 "--format value --column ID",
                 "openstack --os-cloud devstack-admin server delete --all-projects --wait u1 u2", "stop_process n-cpu",
                 "lxc list --format csv --columns n,user.nova.uuid", "lxc delete --force instance-1"]
        self.assertEqual(steps, calls)

    def test_unstack_without_servers(self) -> None:
        self.assertFalse([call for call in self.phase("unstack", LXD_ENGINE="incus") if "server delete" in call])

    def test_clean_removes_what_was_made(self) -> None:
        steps = ["rm -rf /var/lib/containerhost/owners", "lxc image list --format csv --columns l",
                 "lxc image delete nova-1", "lxc image delete nova-2", "lxc storage get default user.devstack"]
        self.assertEqual([*steps, "lxc storage delete default"], self.phase("clean", MADE="true"))
        self.assertEqual(steps, self.phase("clean"))

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
                ("Ubuntu", "incus", "install_package incus"), ("Debian", "incus", "install_package incus-base")):
            calls = self.phase("stack", "install", LACKING="version", os_VENDOR=vendor, LXD_ENGINE=engine)
            self.assertIn(expected, calls)
            self.assertEqual("setup_develop /opt/stack/nova-lxd-ext nova", calls[-1])

    def test_nothing_happens_for_other_drivers_services_and_phases(self) -> None:
        self.assertEqual([], self.phase("stack", "install", VIRT_DRIVER="libvirt"))
        self.assertEqual([], self.phase("stack", "post-config", SERVICES="n-api"))
        self.assertEqual([], self.phase("unstack", SERVICES="n-api"))
        self.assertEqual([], self.phase("clean", VIRT_DRIVER="libvirt"))
        self.assertEqual([], self.phase("stack", "pre-install"))

    def test_an_engine_that_does_not_exist_is_refused(self) -> None:
        error = self.assertRaises(Refused, self.phase, "stack", "install", LXD_ENGINE="docker")
        self.assertIn("LXD_ENGINE is 'docker'", str(error))
