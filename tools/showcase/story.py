# SPDX-License-Identifier: Apache-2.0
"""The story of the demo. Each method is one chapter; what it shows is checked and noted in the report."""

import time
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

from openstack.compute.v2.server import Server
from openstack.exceptions import ForbiddenException

from containerhost.devices.model import Device
from tools.cloud import identity, image
from tools.cloud.cloud import Cloud
from tools.cloud.configs import REGION
from tools.cloud.engine import Output
from tools.cloud.hardware import Offer, Pair
from tools.cloud.identity import TENANT
from tools.showcase import host, placement, selftest
from tools.showcase.inside import Guest, cpu_set
from tools.showcase.live import Live
from tools.showcase.report import Report

FLAVOR = "hpc.gpu1.ib1"
IMAGE = "busybox"
NAMES = ("train-1", "train-2")
RAISED = 10  # of each device, for the tenant's project: more than there are
# Addresses on the InfiniBand subnet, given inside the servers.
ADDRESSES = ("10.77.0.1", "10.77.0.2")
# What the guest's shell says to EPERM, ENOENT and ENXIO.
REFUSED, ABSENT, NO_DRIVER = "Operation not permitted", "no such file", "No such device or address"
INFINIBAND = "32"  # ARPHRD_INFINIBAND, linux/if_arp.h

Value = TypeVar("Value")


class Story:
    """:param pairs: the devices that the cloud offers: one pair for each server
    :param emulated: the devices are not real: a node of theirs can be opened as far as the kernel is asked, no further
    """

    def __init__(self, cloud: Cloud, pairs: tuple[Pair, ...], offers: tuple[Offer, Offer], report: Report,
                 emulated: bool) -> None:
        self._cloud, self._pairs, self._report, self._emulated = cloud, pairs, report, emulated
        self._gpu, self._vf = offers
        self._admin = cloud.connect("admin")
        self._tenant = cloud.connect(TENANT)
        self._before = self._look()
        self._servers: list[Server] = []
        self._guests: list[Guest] = []

    def tell(self) -> None:
        """All of it, in order. A fact that does not hold is noted and the story goes on; an error ends it."""
        self.offer()
        self.show_placement()
        self.limit_projects()
        self.boot_two()
        self.show_numa_nodes()
        self.look_inside()
        self.try_each_others_devices()
        self.ping()
        self.refuse_a_third()
        self.delete_all()
        self.resize_live()
        self.delete_all()
        self.test_devices()
        self.show_everything_free()

    def offer(self) -> None:
        self._report.chapter("An image and a flavor")
        path = image.build(self._cloud.layout.run / "busybox.tar.gz")
        self._report.command(f"openstack image create {IMAGE} --public --disk-format raw --container-format bare "
                             f"--file {path.name}")
        with self._report.timed("image"):
            self._admin.create_image(IMAGE, filename=str(path), disk_format="raw", container_format="bare",
                                     visibility="public", wait=True, timeout=60)
        keys = flavor_keys((self._gpu, self._vf))
        properties = " ".join(f"--property {key}={value}" for key, value in keys.items())
        self._report.command(f"openstack flavor create {FLAVOR} --vcpus 1 --ram 256 --disk 1 {properties}")
        flavor = self._admin.compute.create_flavor(name=FLAVOR, vcpus=1, ram=256, disk=1)
        self._admin.compute.create_flavor_extra_specs(flavor, keys)
        self._report.say(f"One {self._gpu.alias} and one {self._vf.alias} for each, on the NUMA node of its CPUs")

    def show_placement(self) -> None:
        self._report.chapter("The devices are in Placement")
        self._report.command("openstack resource provider list; openstack resource provider inventory list <uuid>")
        found = placement.providers(self._admin)
        for provider in found:
            has = ", ".join(f"{name} {total}" for name, total in provider.inventory.items())
            self._report.say(f"{provider.name}: {has}")
        for offer in (self._gpu, self._vf):
            total = sum(provider.inventory.get(offer.resource_class, 0) for provider in found)
            self._report.check("placement", f"{offer.alias} is a resource of its own",
                               f"{offer.resource_class}: {total}", total == len(self._pairs))

    def limit_projects(self) -> None:
        self._report.chapter("Each project may have one of either")
        for offer in (self._gpu, self._vf):
            resource = f"class:{offer.resource_class}"
            self._report.command(f"openstack registered limit create --service nova --region {REGION} "
                                 f"--default-limit 1 {resource}")
            identity.register_limit(self._admin, resource, 1)

    def boot_two(self) -> None:
        self._report.chapter("Two servers")
        self._boot(NAMES[0])
        self.exceed_quota(NAMES[1])
        self._boot(NAMES[1])
        for server in self._servers:
            self._report.check(server.name, "is ACTIVE", told(server), server.status == "ACTIVE")
        if any(server.status != "ACTIVE" for server in self._servers):
            raise RuntimeError("Without two running servers there is nothing more to show.")
        self._guests = [self._guest(server) for server in self._servers]

    def _boot(self, name: str) -> None:
        with self._report.timed(f"{name}, from request to ACTIVE"):
            self._servers.append(self._settled(self._create(name)))

    def exceed_quota(self, name: str) -> None:
        """Ask for one server more than the project's limits allow, then raise them for this project."""
        try:
            self._servers.append(self._settled(self._create(name)))
            answer = "nothing refused it"
        except ForbiddenException as error:
            answer = f"{error.status_code}: {error.details}"
        classes = [offer.resource_class for offer in (self._gpu, self._vf)]
        self._report.check(name, "is refused by the project's quota, while the devices are free", answer,
                           all(name in answer for name in classes))
        for resource in classes:
            self._report.command(identity.limit_command(TENANT, f"class:{resource}", RAISED))
            identity.limit_project(self._admin, self._tenant.current_project_id, f"class:{resource}", RAISED)

    def show_numa_nodes(self) -> None:
        self._report.chapter("Where they are")
        self._report.command("containerhost list; containerhost topology --text")
        view = self._look()
        self._report.picture(host.drawn(self._cloud.owners))
        nodes = []
        for server, guest in zip(self._servers, self._guests, strict=True):
            held = view.held_by(guest.name)
            devices = ", ".join(f"{device.kind} {device.address} on node {device.numa_node}" for device in held)
            self._report.check(server.name, "has one GPU and one virtual function", devices,
                               sorted(device.id for device in held) in [sorted(device.id for device in pair.devices)
                                                                        for pair in self._pairs])
            cpus = cpu_set(self._cloud.engine.query(f"/1.0/instances/{guest.name}")["config"].get("limits.cpu", ""))
            near = {device.numa_node for device in held}
            node = near.pop() if len(near) == 1 else None
            here = frozenset() if node is None else view.cpus[node]
            nodes.append(node)
            self._report.check(server.name, "GPU, virtual function and CPUs are on one NUMA node",
                               f"node {node}, which has CPUs {listed(here)}; limits.cpu {listed(cpus)}",
                               bool(cpus) and cpus <= here)
            function = next(device for device in held if device.rdma)
            before = self._before.devices[function.id]
            self._report.check(server.name, "its virtual function has GUIDs made for it",
                               f"{guids(function)}, before {guids(before)}", guids(function) != guids(before))
            resources = placement.allocations(self._admin, server.id)
            total = {name: amount for entry in resources.values() for name, amount in entry.items()}
            self._report.check(server.name, "Placement holds exactly that for it",
                               ", ".join(f"{name} {amount}" for name, amount in sorted(total.items())),
                               total.get(self._gpu.resource_class) == 1 and total.get(self._vf.resource_class) == 1)
        apart = "different NUMA nodes" if len({pair.node for pair in self._pairs}) > 1 else "one NUMA node"
        self._report.check("cloud", f"the servers are on {apart}, as the devices are",
                           " and ".join(f"node {node}" for node in nodes),
                           sorted(nodes, key=str) == sorted((pair.node for pair in self._pairs), key=str))

    def look_inside(self) -> None:
        self._report.chapter("What each sees inside")
        view = self._look()
        for server, guest in zip(self._servers, self._guests, strict=True):
            held = view.held_by(guest.name)
            own = node_paths(held)
            others = node_paths(device for device in view.devices.values() if device not in held)
            seen = guest.device_nodes()
            self._report.check(server.name, "sees its device nodes and nobody else's", " ".join(sorted(seen)),
                               own <= seen and not seen & (others - own))
            interfaces = guest.interfaces()
            self._report.check(server.name, "sees one network interface, and it is InfiniBand",
                               f"{' '.join(sorted(interfaces))}, link type {guest.link_type('ib0')}",
                               interfaces == {"ib0"} and guest.link_type("ib0") == INFINIBAND)
            limit = guest.lockable_memory()
            self._report.check(server.name, "may lock the memory that RDMA needs", limit, limit == self._cloud.memlock)
            cpus = guest.cpus()
            nodes = {device.numa_node for device in held}
            self._report.check(server.name, "runs on the CPUs of that node only", listed(cpus),
                               any(bool(cpus) and cpus <= view.cpus[node] for node in nodes if node is not None))

    def try_each_others_devices(self) -> None:
        self._report.chapter("Neither can open the other's")
        view = self._look()
        for server, guest, other in zip(self._servers, self._guests, reversed(self._guests), strict=True):
            for device in view.held_by(guest.name):
                self._open_own(server, guest, device)
            for device in view.held_by(other.name):
                self._open_foreign(server, guest, device)

    def _open_own(self, server: Server, guest: Guest, device: Device) -> None:
        answers = [guest.open(node.path) for node in host.tenant_nodes(device)]
        # Behind an emulated node is no driver: ENXIO says that the kernel let the container as far as that.
        allowed = [NO_DRIVER in answer.err if self._emulated else answer.status == 0 for answer in answers]
        opened = "yes (ENXIO: an emulated node has no driver behind it)" if self._emulated else "yes"
        self._report.check(server.name, f"may open its own {paths(device)}",
                           opened if all(allowed) else said(answers, NO_DRIVER), bool(allowed) and all(allowed))

    def _open_foreign(self, server: Server, guest: Guest, device: Device) -> None:
        nodes = host.tenant_nodes(device)
        opened = [guest.open(node.path) for node in nodes]
        self._report.check(server.name, f"has no {paths(device)}", said(opened, ABSENT),
                           bool(opened) and all(ABSENT in answer.err for answer in opened))
        made = [guest.make_node(node.major, node.minor) for node in nodes]
        numbers = " ".join(f"{node.major}:{node.minor}" for node in nodes)
        self._report.check(server.name, f"cannot make {numbers} itself", said(made, REFUSED),
                           bool(made) and all(REFUSED in answer.err for answer in made))

    def ping(self) -> None:
        self._report.chapter("They reach each other over the two virtual functions")
        for guest, address in zip(self._guests, ADDRESSES, strict=True):
            guest.set_address("ib0", address)
        for server, guest, address in zip(self._servers, self._guests, reversed(ADDRESSES), strict=True):
            answer = guest.ping(address)
            result = [line for line in answer.out.splitlines() if "received" in line or "round-trip" in line]
            self._report.check(server.name, f"pings {address} through ib0", "; ".join(result) or answer.err,
                               answer.status == 0)

    def refuse_a_third(self) -> None:
        self._report.chapter("A third server, when every GPU is taken")
        server = self._settled(self._create("train-3"))
        reason = (server.fault or {}).get("message", "no reason given")
        self._report.check("train-3", "is refused with a clear reason", f"{server.status}: {reason.strip()}",
                           server.status == "ERROR" and "No valid host" in reason)
        self._servers.append(server)

    def delete_all(self) -> None:
        self._report.chapter("Deleting them")
        self._report.command(f"openstack server delete --wait {' '.join(server.name for server in self._servers)}")
        with self._report.timed("delete"):
            for server in self._servers:
                self._tenant.compute.delete_server(server)
            for server in self._servers:
                self._tenant.compute.wait_for_delete(server, interval=0.2, wait=60)
        self._servers = []

    def resize_live(self) -> None:
        live = Live(self._admin, self._tenant, self._report, self._create, self._settled, self._guest)
        self._servers.append(live.tell(FLAVOR))

    def test_devices(self) -> None:
        self._report.chapter("The operator's self-test gives and takes devices that no server has")
        gpu, function = self._pairs[0].devices
        selftest.run(self._cloud, self._report, ("--gpu", gpu.id, "--vf", function.id))

    def _guest(self, server: Server) -> Guest:
        return Guest(self._cloud.engine, self._admin.compute.get_server(server.id).instance_name)

    def show_everything_free(self) -> None:
        self._report.chapter("Every device is free again")
        self._report.command("containerhost list; openstack resource provider usage show <uuid>")
        left = self._cloud.engine.query("/1.0/instances")
        self._report.check("host", "no container is left", str(len(left)), not left)
        view = self._look()
        self._report.check("host", "no device has an owner", listed(view.owners) or "none", not view.owners)
        self._report.check("host", "every interface and GUID is as it was before", *self._difference(view))
        used = wait_for(lambda: placement.used(self._admin), lambda used: not used)
        self._report.check("placement", "nothing is in use", listed(used) or "all usages 0", not used)

    # -- helpers

    def _look(self) -> host.HostView:
        return host.look(self._cloud.owners)

    def _difference(self, view: host.HostView) -> tuple[str, bool]:
        changed = [name for name in {*view.devices, *self._before.devices}
                   if view.devices.get(name) != self._before.devices.get(name)]
        return f"changed: {listed(changed)}" if changed else f"{len(view.devices)} devices unchanged", not changed

    def _create(self, name: str, flavor_name: str = FLAVOR) -> Server:
        self._report.command(f"openstack server create --flavor {flavor_name} --image {IMAGE} --nic none {name}")
        flavor = self._tenant.compute.find_flavor(flavor_name, ignore_missing=False)
        found = self._tenant.image.find_image(IMAGE, ignore_missing=False)
        return self._tenant.compute.create_server(name=name, flavor_id=flavor.id, image_id=found.id, networks="none")

    def _settled(self, server: Server, states: Collection[str] = ("ACTIVE", "ERROR")) -> Server:
        """Return the server once it has one of the states; after a minute, as it is."""
        return wait_for(lambda: self._tenant.compute.get_server(server.id), lambda now: now.status in states)


def flavor_keys(offers: Iterable[Offer]) -> dict[str, str]:
    """Return the extra specs of a flavor with one of each device, on the NUMA node of its CPUs."""
    return {"pci_passthrough:alias": ",".join(f"{offer.alias}:1" for offer in offers), "hw:numa_nodes": "1",
            "hw:pci_numa_affinity_policy": "required"}


def wait_for(ask: Callable[[], Value], enough: Callable[[Value], bool], limit: float = 60) -> Value:
    """Ask until the answer is enough, but no longer than ``timeout`` seconds; the last answer."""
    deadline = time.monotonic() + limit
    while not enough(answer := ask()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return answer


def said(answers: Iterable[Output], known: str) -> str:
    """Return the different errors of some commands; a known one is shortened to what it says."""
    return listed({known if known in answer.err else answer.err for answer in answers} - {""})


def node_paths(devices: Iterable[Device]) -> set[str]:
    return {node.path for device in devices for node in host.tenant_nodes(device)}


def paths(device: Device) -> str:
    return " ".join(sorted(node_paths([device])))


def guids(device: Device) -> str:
    """Node and port GUID of a network function."""
    return f"{device.rdma.node_guid} {device.rdma.port_guid}" if device.rdma else "none"


def told(server: Server) -> str:
    return f"{server.status}: {server.fault['message']}" if server.fault else server.status


def listed(items: Iterable[object]) -> str:
    return ", ".join(sorted(str(item) for item in items))
