# SPDX-License-Identifier: Apache-2.0
"""Tell an operator's story: from a host without a driver to the first server with a GPU, by ``ansible/``.

The host's directories are seen through ``tools/overlay``: nothing is installed on this machine itself."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import yaml
from openstack.compute.v2.server import Server

from tools.cloud import image
from tools.cloud.cloud import Cloud
from tools.cloud.engine import POOL
from tools.cloud.identity import TENANT
from tools.cloud.layout import CHECKOUT
from tools.showcase import host
from tools.showcase.inside import Guest
from tools.showcase.report import Report
from tools.showcase.story import told, wait_for

# What packages and roles change on a host.
DIRECTORIES = ("/etc", "/usr", "/opt", "/var/cache", "/var/lib/apt", "/var/lib/dpkg")
CONTAINERHOST = "/usr/bin/containerhost"
IMAGE, SERVER = "busybox", "first"
CARD, FUNCTIONS = "0000:5e:00.0", 4  # of the emulated host "small", which begins with 2
TOOLS = Path(sys.executable).parent
TIMEOUT = 600  # s for one run of the playbook
RESTART = Path("/usr/local/sbin/restart-nova-compute")
# No systemd runs on an emulated host.
RESTARTER = """#!/bin/sh
set -e
start-stop-daemon --stop --oknodo --retry 30 --remove-pidfile --pidfile {run}/nova-compute.pid
exec start-stop-daemon --start --background --make-pidfile --pidfile {run}/nova-compute.pid --output {log} \\
    --startas /opt/nova-lxd-ext/bin/nova-compute
"""
RECAP = re.compile(r"^(\S+) +: ok=(\d+) +changed=(\d+) +unreachable=(\d+) +failed=(\d+)", re.M)


class AnsibleStory:
    """:param package: the Debian package for the host, with nova"""

    def __init__(self, cloud: Cloud, report: Report, package: Path) -> None:
        self._cloud, self._report, self._package = cloud, report, package
        self._admin, self._tenant = cloud.connect("admin"), cloud.connect(TENANT)

    def tell(self) -> None:
        """All of it, in order. A fact that does not hold is noted and the story goes on; an error ends it."""
        self.prepare()
        with self._report.timed("from ansible-playbook to the first server ACTIVE"):
            self.configure()
            self.offer()
            server = self.boot()
        self.look_inside(server)
        self.repeat()

    def prepare(self) -> None:
        self._report.chapter("A compute host: LXD, and a nova.conf that names the cloud and no driver")
        self._cloud.write_node_config(Path("/etc/nova/nova.conf"))
        RESTART.write_text(RESTARTER.format(run=self._cloud.layout.run, log=self._cloud.daemons.log("nova-compute")))
        RESTART.chmod(0o755)
        inventory = {"all": {
            "vars": {"ansible_connection": "local", "ansible_python_interpreter": "/usr/bin/python3",
                     **self._variables()},
            "children": {group: {"hosts": {"node": {}}} for group in ("nova_compute", "nova_controller")}}}
        text = yaml.safe_dump(inventory)
        self._inventory.write_text(text)
        self._report.say(f"The inventory:\n{text}")

    def _variables(self) -> Mapping[str, object]:
        return {"nova_lxd_ext_package": str(self._package), "containerhost_vfs": {CARD: FUNCTIONS},
                "containerhost_owners": str(self._cloud.owners),
                "nova_lxd_options": {"endpoint": str(self._cloud.engine.socket), "storage_pool": POOL,
                                     "rdma_memlock": self._cloud.memlock},
                "nova_lxd_restart_command": str(RESTART),
                "nova_lxd_controller_restart_command":
                f"env PYTHONPATH={CHECKOUT} {sys.executable} -m tools.showcase restart-aliases"}

    @property
    def _inventory(self) -> Path:
        return self._cloud.layout.run / "inventory.yaml"

    def configure(self) -> None:
        self._report.chapter("The roles install the package and configure nova")
        with self._report.timed("the first run of the playbook"):
            changed = self._play("ansible")
        self._report.check("ansible", "the first run changes the host", f"{changed} tasks changed", changed > 0)
        with self._report.timed("nova-compute in its cell"):
            self._cloud.wait_for_compute(self._admin)
        program = os.path.realpath(CONTAINERHOST)
        self._report.check("host", "its commands are the package's", program, program.startswith("/opt/nova-lxd-ext/"))
        view = host.look(self._cloud.owners)
        functions = sum(device.parent == CARD for device in view.devices.values())
        self._report.check("host", "its card has the virtual functions that the inventory says", str(functions),
                           functions == FUNCTIONS)

    def offer(self) -> None:
        self._report.chapter("Flavors for what was found, and an image")
        command = f"{CONTAINERHOST} config nova --flavors openstack --disk 1"
        self._report.command(f"{command} | sh")
        written = subprocess.run(shlex.split(command), capture_output=True, text=True, check=True).stdout
        subprocess.run(("sh", "-e"), input=written, text=True, check=True, capture_output=True, env={
            **self._cloud.daemons.environment, "OS_CLOUD": "admin", "PATH": f"{TOOLS}:{os.environ['PATH']}"})
        self._flavor = written.split()[3]
        path = image.build(self._cloud.layout.run / "busybox.tar.gz")
        self._admin.create_image(IMAGE, filename=str(path), disk_format="raw", container_format="bare",
                                 visibility="public", wait=True, timeout=60)

    def boot(self) -> Server:
        self._report.chapter("The first server")
        self._report.command(f"openstack server create --flavor {self._flavor} --image {IMAGE} --nic none {SERVER}")
        flavor = self._tenant.compute.find_flavor(self._flavor, ignore_missing=False)
        found = self._tenant.image.find_image(IMAGE, ignore_missing=False)
        server = self._tenant.compute.create_server(name=SERVER, flavor_id=flavor.id, image_id=found.id,
                                                    networks="none")
        server = wait_for(lambda: self._tenant.compute.get_server(server.id), lambda now: now.status != "BUILD", 120)
        self._report.check(SERVER, "is ACTIVE", told(server), server.status == "ACTIVE")
        return server

    def look_inside(self, server: Server) -> None:
        guest = Guest(self._cloud.engine, self._admin.compute.get_server(server.id).instance_name)
        held = host.look(self._cloud.owners).held_by(guest.name)
        own = {node.path for device in held for node in host.tenant_nodes(device)}
        seen = guest.device_nodes()
        self._report.check(SERVER, "has one GPU", ", ".join(f"{device.kind} {device.address}" for device in held),
                           [device.kind for device in held] == ["gpu"])
        self._report.check(SERVER, "sees it", " ".join(sorted(seen)), bool(own) and own <= seen)

    def repeat(self) -> None:
        self._report.chapter("The same playbook once more")
        with self._report.timed("the second run of the playbook"):
            changed = self._play("ansible-again")
        self._report.check("ansible", "the second run changes nothing", f"{changed} tasks changed", changed == 0)

    def _play(self, name: str) -> int:
        """Run the playbook; how many tasks changed something.

        :raises DaemonFailed: a task failed
        """
        command = (str(TOOLS / "ansible-playbook"), "--inventory", str(self._inventory),
                   str(CHECKOUT / "ansible" / "site.yml"))
        self._report.command(f"ansible-playbook --inventory {self._inventory.name} ansible/site.yml")
        self._cloud.daemons.run(name, command, {"ANSIBLE_NOCOLOR": "1", "ANSIBLE_HOME": str(self._cloud.layout.run)},
                                limit=TIMEOUT)
        recap = RECAP.search(self._cloud.daemons.log(name).read_text())
        if recap is None:
            raise ValueError(f"No recap in {self._cloud.daemons.log(name)}")
        return int(recap[3])
