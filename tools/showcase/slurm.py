# SPDX-License-Identifier: Apache-2.0
"""The story of a Slurm cluster in the cloud: its nodes are servers, which are shelved while no job needs them."""

import contextlib
import re
import shlex
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from openstack.compute.v2.server import Server

from containerhost.guest import guest
from tools.cloud import identity
from tools.cloud.cloud import Cloud
from tools.cloud.hardware import Offer
from tools.cloud.layout import CHECKOUT
from tools.cloud.networking import EXTERNAL
from tools.debianimage import DebianImage, File
from tools.mpi import image, job
from tools.showcase import host, placement
from tools.showcase.gang import GangStory
from tools.showcase.report import Report
from tools.showcase.story import flavor_keys, listed, node_paths, wait_for

EXAMPLES = CHECKOUT / "examples" / "slurm"
PACKAGES = ("munge", "slurm-client", "slurmctld", "slurmd")
IMAGE = FLAVOR = KEY = "slurm"  # as in the job file
USER = "debian"  # the one that cloud-init gives the key to
MOST = 10  # of each device, for a project: more than there are
TIMEOUT = 600  # s; for a server that is shelved or unshelved, and a job that waits for it
RUN = "srun --nodes=2 --gres=gpu:1,nic:1 devices"
SINFO = "sinfo --Node --noheader --format=%N,%T"
LINE = re.compile(r"(\S+) gpu=(\S*) nic=(\S*)((?: /dev/\S+)*)")


def recipe() -> DebianImage:
    def program(path: Path) -> File:
        return File(path.read_bytes(), 0o755)

    return image.member(CHECKOUT / ".cache" / "slurm", PACKAGES, {
        "etc/rc.local": program(EXAMPLES / "member.py"), "usr/local/bin/devices": program(EXAMPLES / "devices.sh"),
        "usr/local/bin/containerhost-guest": program(Path(guest.__file__))})


def seen(output: str) -> dict[str, tuple[str, str, frozenset[str]]]:
    """Return what the tasks of a job printed: node -> GPUs and functions by number, and device nodes."""
    return {told[1]: (told[2], told[3], frozenset(told[4].split()))
            for line in output.splitlines() if (told := LINE.fullmatch(line))}


def exact(found: Mapping[str, tuple[str, str, frozenset[str]]], own: Mapping[str, Collection[str]],
          every: Collection[str]) -> bool:
    """Return whether each task has one GPU and one function, and in /dev all that is its server's and no other's.

    :param own: server's name -> device nodes that only it may have
    :param every: such nodes of all devices of the host
    """
    return found.keys() == own.keys() and all(
        (gpu, nic) == ("0", "mlx4_0") and nodes & set(every) == set(own[name]) != set()
        for name, (gpu, nic, nodes) in found.items())


class SlurmStory(GangStory):
    """:param offers: the GPU and the function that each node has one of"""

    def __init__(self, cloud: Cloud, offers: Sequence[Offer], report: Report) -> None:
        super().__init__(cloud, report)
        self._offers = offers
        self._ssh: tuple[str, ...] = ()

    def tell(self) -> None:
        """All of it, in order. A fact that does not hold is noted and the story goes on; an error ends it."""
        self._jobs.mkdir()
        self.offer()
        ident, members = self.start_a_cluster()
        self.run_a_job(members)
        with self._scaling(ident):
            self.scale_down(members[-1].name)
            self.use_what_is_free(members[-1].name)
            self.scale_up(members)
        self._tenant.network.delete_ip(self._address)
        self._delete(ident)

    def offer(self) -> None:
        self._report.chapter("An image with Slurm, a flavor with a GPU and a function, a key")
        with self._report.timed("image"):
            path = recipe().unified(self._report.say)
            self._admin.create_image(IMAGE, filename=str(path), disk_format="raw", container_format="bare",
                                     visibility="public", wait=True, timeout=300)
        keys = flavor_keys(self._offers)
        properties = " ".join(f"--property {key}={value}" for key, value in keys.items())
        self._report.command(f"openstack flavor create {FLAVOR} --vcpus 1 --ram 512 --disk 2 {properties}")
        flavor = self._admin.compute.create_flavor(name=FLAVOR, vcpus=1, ram=512, disk=2)
        self._admin.compute.create_flavor_extra_specs(flavor, keys)
        for offer in self._offers:
            identity.register_limit(self._admin, f"class:{offer.resource_class}", MOST)
        subprocess.run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self._jobs / KEY)), check=True)
        self._report.command(f"openstack keypair create --public-key {KEY}.pub {KEY}")
        self._tenant.compute.create_keypair(name=KEY, public_key=(self._jobs / f"{KEY}.pub").read_text())
        self._report.command("openstack security group rule create --protocol tcp --dst-port 22 default")
        group = self._tenant.network.find_security_group("default", ignore_missing=False)
        self._tenant.network.create_security_group_rule(
            security_group_id=group.id, direction="ingress", protocol="tcp", port_range_min=22, port_range_max=22)

    def start_a_cluster(self) -> tuple[str, list[job.Member]]:
        self._report.chapter("A Slurm cluster by one command")
        ident, members = self._start(EXAMPLES / "job.yaml")
        network = self._tenant.network
        self._report.command(f"openstack floating ip create --port {members[0].name} {EXTERNAL}")
        self._address = network.create_ip(floating_network_id=network.find_network(EXTERNAL).id,
                                          port_id=network.find_port(members[0].name).id)
        self._ssh = ("ssh", "-n", "-F", "none", "-i", str(self._jobs / KEY), "-o", "BatchMode=yes",
                     "-o", "ConnectTimeout=5", "-o", "StrictHostKeyChecking=accept-new",
                     "-o", f"UserKnownHostsFile={self._jobs / 'known_hosts'}",
                     f"{USER}@{self._address.floating_ip_address}")
        self._report.command(f"ssh {self._ssh[-1]} {SINFO}")
        states = self._await_nodes({member.name: "idle" for member in members})
        self._report.check(ident, "every member is a node of Slurm", states,
                           states == ", ".join(f"{member.name} idle" for member in members))
        return ident, members

    def run_a_job(self, members: Sequence[job.Member]) -> None:
        self._report.chapter("A job on both nodes")
        with self._report.timed("job on nodes that are up"):
            done = self._call(RUN)
        self._has_its_own(members, done)

    def scale_down(self, name: str) -> None:
        self._report.chapter("A node without a job for a minute goes back to the cloud")
        with self._report.timed("from idle to shelved, the minute included"):
            server = self._settled(name, "SHELVED_OFFLOADED")
        states = self._await_nodes({name: "idle~"})
        self._report.check(name, "Slurm has powered it down, and its server is shelved", f"{states}; {server.status}",
                           f"{name} idle~" in states and server.status == "SHELVED_OFFLOADED")
        allocated = placement.allocations(self._admin, server.id)
        owners = host.look(self._cloud.owners).held_by(self._container(name))
        self._report.check(name, "holds nothing in Placement nor on the host", f"{allocated or 'nothing'}; "
                           f"{listed(device.id for device in owners) or 'nothing'}", not allocated and not owners)

    def use_what_is_free(self, name: str) -> None:
        self._report.chapter("Another server has the GPU and the function meanwhile")
        self._report.command(f"openstack server create --flavor {FLAVOR} --image {IMAGE} --nic none other")
        compute = self._tenant.compute
        compute.create_server(
            name="other", networks="none", flavor_id=compute.find_flavor(FLAVOR, ignore_missing=False).id,
            image_id=self._tenant.image.find_image(IMAGE, ignore_missing=False).id)
        server = self._settled("other", "ACTIVE")
        devices = host.look(self._cloud.owners).held_by(self._container("other"))
        self._report.check("other", f"has a GPU and a function while {name} is shelved",
                           f"{server.status}: {listed(device.id for device in devices)}",
                           server.status == "ACTIVE" and len(devices) == len(self._offers))
        self._report.command("openstack server delete --wait other")
        compute.delete_server(server)
        compute.wait_for_delete(server, wait=60)

    def scale_up(self, members: Sequence[job.Member]) -> None:
        self._report.chapter("A job waits, and the node comes back")
        with self._report.timed("job on a node that is shelved"):
            done = self._call(RUN)
        self._has_its_own(members, done)
        server = self._settled(members[-1].name, "ACTIVE")
        self._report.check(members[-1].name, "is a server again", server.status, server.status == "ACTIVE")

    # -- helpers

    def _has_its_own(self, members: Sequence[job.Member], done: "subprocess.CompletedProcess[str]") -> None:
        """Compare what a job's tasks saw with the host's records."""
        view = host.look(self._cloud.owners)
        own = {member.name: node_paths(view.held_by(self._container(member.name))) for member in members}
        found = seen(done.stdout)
        for name, (gpu, nic, nodes) in sorted(found.items()):
            self._report.say(f"{name}: CUDA_VISIBLE_DEVICES={gpu}, SLURM_STEP_NICS={nic}, {listed(nodes)}")
        self._report.check("srun", "each task has its server's GPU and function, and no node of another's",
                           "; ".join(f"{name} {' '.join(sorted(nodes))}" for name, nodes in own.items())
                           if found else done.stderr.strip(),
                           done.returncode == 0 and exact(found, own, node_paths(view.devices.values())))

    @contextlib.contextmanager
    def _scaling(self, ident: str) -> Iterator[None]:
        """Run the tenant's program that does what Slurm decides."""
        self._report.command(f"examples/slurm/scale.py {ident} ssh {self._ssh[-1]}")
        command = [sys.executable, str(EXAMPLES / "scale.py"), ident, *self._ssh]
        with (self._cloud.layout.logs / "scale.log").open("w") as log, \
                subprocess.Popen(command, env=self._environment(), stdout=log, stderr=log) as process:
            try:
                yield
            finally:
                process.terminate()

    def _call(self, command: str) -> "subprocess.CompletedProcess[str]":
        self._report.command(f"ssh {self._ssh[-1]} {command}")
        return self._run(*shlex.split(command))

    def _run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run((*self._ssh, shlex.join(words)), text=True, capture_output=True, timeout=TIMEOUT,
                              check=False)

    def _await_nodes(self, wanted: Mapping[str, str]) -> str:
        """Wait until nodes have these states, and return the states of all."""
        def look() -> dict[str, str]:
            return dict(line.split(",") for line in self._run(*SINFO.split()).stdout.splitlines())

        states = wait_for(look, lambda found: wanted.items() <= found.items(), TIMEOUT)
        return ", ".join(f"{name} {state}" for name, state in sorted(states.items())) or "no answer"

    def _settled(self, name: str, status: str) -> Server:
        """Return the server once it has this status, or ERROR."""
        return wait_for(lambda: self._tenant.compute.find_server(name, ignore_missing=False, details=True),
                        lambda server: not server.task_state and server.status in (status, "ERROR"), TIMEOUT)

    def _container(self, name: str) -> str:
        (server,) = self._admin.compute.servers(all_projects=True, name=f"^{re.escape(name)}$")
        found: Any = self._admin.compute.get_server(server.id)
        return str(found.instance_name)
