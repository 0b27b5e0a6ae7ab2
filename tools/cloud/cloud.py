# SPDX-License-Identifier: Apache-2.0
"""The whole cloud: prepare it once, bring it up, take it down."""

import concurrent.futures
import dataclasses
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import openstack
from openstack.connection import Connection

from tools.cloud import configs, dashboard, identity, ini, lxcfs, probes, services, volumes
from tools.cloud.daemons import DaemonFailed, Daemons
from tools.cloud.database import MariaDb
from tools.cloud.engine import POOL, Engine, lockable_memory
from tools.cloud.hardware import Offer
from tools.cloud.layout import FIRST, LOOPBACK, PLAIN, SECOND, Layout, Passwords, Ports, Shape
from tools.cloud.messages import RabbitMq
from tools.cloud.networking import Networking, remove_namespaces
from tools.cloud.secondhost import SERVICES, TUNNELS, SecondHost
from tools.cloud.switch import Switch

APIS = ("keystone", "glance", "placement", "neutron", "nova")
RELEASES = ("keystone", "glance", "openstack-placement", "neutron", "nova")
CONTROL_WORKERS = ("nova-conductor", "nova-scheduler")
POLL_INTERVAL = 1.0  # s; each poll is a request to an API that is starting beside everything else


class PortTaken(Exception):
    """Something else listens where a service of the cloud must."""


class Cloud:
    """MariaDB, RabbitMQ, keystone, glance, placement, neutron-server, nova and LXD or Incus on this machine.

    :param offers: the devices that flavors can ask for; a second host has the same ones
    :param owners: directory of the allocation records; a private one if not given, which is right only for
        emulated devices: all drivers of a host must share theirs
    :param say: gets in a few words what is being done
    :param shape: what it has beside
    """

    def __init__(self, layout: Layout, offers: Iterable[Offer] = (), owners: Path | None = None,
                 say: Callable[[str], None] = print, shape: Shape = PLAIN) -> None:
        self._say = say
        self.shape = shape
        self.layout = layout
        self.ports = Ports(SERVICES[0] if shape.second_host else LOOPBACK)
        self.offers = tuple(offers)
        self.owners = owners or layout.run / "owners"
        self.engine = Engine(layout.engine)
        self.engines = (self.engine, *([Engine(layout.engine_of(SECOND), SECOND)] if shape.second_host else []))
        self.memlock = lockable_memory()
        self.daemons = Daemons(layout.logs)
        self.switch = Switch(layout, self.ports)
        self.second = SecondHost(layout, self.ports, self.daemons) if shape.second_host else None

    def up(self) -> None:
        """Bring everything up; on an error what was started stays for :meth:`down`.

        :raises PortTaken: before anything is started
        :raises DaemonFailed: a process ended or did not become ready; with the end of its log
        """
        self._refuse_taken_ports()
        self.layout.run.chmod(0o700)
        self.daemons.bring_up(lxcfs.needed(self.layout.run))  # the second host sees what was mounted before it
        if self.second:
            self.second.create()
        with concurrent.futures.ThreadPoolExecutor() as pool:
            engines = pool.submit(self._start_engines)
            if not self._is_prepared():
                self._prepare()
            networking = (Networking(self._parts(), self.daemons, self.switch, self.second)
                          if self.shape.networks else None)
            self._start_control(networking)
            engines.result()
        with self.connect("admin") as admin:
            if networking:
                networking.start_agents()
            self._start_compute(admin)
            if self.shape.dashboard:
                self._start_dashboard()
            if self.shape.volumes:
                self._wait_until("Cinder's workers are up", lambda: volumes.workers_up(admin))
            if networking:
                networking.wait_for_agents(admin, self._wait_until)
                networking.create_networks(admin)

    def down(self) -> None:
        """End every process and delete every file of the running cloud; what was prepared is kept. Twice is fine."""
        for engine in self.engines:
            if (self.layout.logs / f"{engine.name}.json").exists():
                engine.shut_down()
        if self.shape.networks:
            self.switch.remove_bridges()
        self.daemons.stop()
        self.daemons.kill_leftovers()
        if self.shape.networks:
            remove_namespaces()
        for directory in (*(engine.directory for engine in self.engines), self.layout.run):
            unmount_below(directory)
            if directory.exists():
                shutil.rmtree(directory)

    def wait_for_compute(self, admin: Connection) -> None:
        self._wait_until("nova-compute is up and its host in its cell", lambda: self._computes_up(admin))

    def restart_aliases(self) -> None:
        """Restart what has read the aliases of devices; another process may have started it."""
        daemons = [services.api(self.layout, self.ports, "nova"), services.nova_daemon(self.layout, "nova-scheduler")]
        self.daemons.stop([daemon.name for daemon in daemons])
        self.daemons.bring_up(daemons)

    def write_node_config(self, path: Path) -> None:
        """Write nova.conf of a compute host as it is before it has a driver."""
        parts = self._parts()
        ini.write(path, {**configs.nova_common(parts, parts.nodes[0]), "vnc": {"enabled": "false"}})

    def connect(self, name: str) -> Connection:
        """As ``admin`` or as the tenant (:data:`tools.cloud.identity.TENANT`)."""
        os.environ["OS_CLIENT_CONFIG_FILE"] = str(self.layout.clouds_yaml)
        return openstack.connect(cloud=name)

    def versions(self) -> dict[str, str]:
        """Return the version of everything that the cloud is made of."""
        server = subprocess.run(("mariadbd", "--version"), capture_output=True, text=True, check=True).stdout
        return {**{name: importlib.metadata.version(name) for name in RELEASES}, "mariadb": server.strip(),
                self.engine.flavour.name: self.engine.version()}

    # -- parts

    def _parts(self) -> configs.Parts:
        """Only to be asked once the state directory is there: the passwords come from it."""
        passwords = Passwords(self.layout.state / "passwords.json")
        return configs.Parts(
            layout=self.layout, ports=self.ports, passwords=passwords,
            database=MariaDb(self.layout, passwords), messages=RabbitMq(self.layout, self.ports, passwords),
            nodes=self.nodes, pool=POOL, memlock=self.memlock, shape=self.shape)

    @property
    def nodes(self) -> tuple[configs.Node, ...]:
        """Return the compute hosts, which have the same devices."""
        first = configs.Node(FIRST, self.engine.socket, self.owners, self.offers)
        if not self.second:
            return (first,)
        return (dataclasses.replace(first, address=SERVICES[0], tunnels=TUNNELS[0]),
                configs.Node(SECOND, self.engines[1].socket, self.layout.run / f"owners{SECOND}", self.offers,
                             address=SERVICES[1], tunnels=TUNNELS[1]))

    def _refuse_taken_ports(self) -> None:
        taken = [f"{name} {port}" for name, port in self.ports.used(self.shape).items()
                 if any(probes.port_open(port, address) for address in {LOOPBACK, self.ports.address})]
        if taken:
            raise PortTaken(f"These ports are in use: {', '.join(taken)}. The cloud needs them; end what "
                            "listens there, or, if it is an earlier cloud, run: sudo tools/demo down")

    def _start_engines(self) -> None:
        self.daemons.bring_up([self.engine.daemon()])
        if self.second:
            self.daemons.bring_up([self.second.daemon(self.engines[1].daemon())])
            for engine, address in zip(self.engines, SERVICES, strict=True):
                engine.listen(f"{address}:{self.ports.engine}")
        for engine in self.engines:
            engine.create_pool()
        self._say(f"{self.engine.flavour.name} answers, with a storage pool of its own")

    # -- preparing: databases, keys, users and endpoints, kept for later starts

    def _prepared_for(self) -> str:
        """Return what the prepared state depends on: releases, paths and our own code that makes it."""
        code = [(Path(__file__).parent / f"{name}.py").read_text()
                for name in ("cloud", "configs", "database", "identity", "ini", "layout", "messages", "services")]
        parts = [*self.versions().values(), str(self.layout.run), str(self.shape), *code]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def _is_prepared(self) -> bool:
        note = self.layout.prepared / "for"
        if not note.exists() or note.read_text() != self._prepared_for():
            return False
        self._say("Databases, users and endpoints were prepared by an earlier run: copying them")
        shutil.copytree(self.layout.prepared / "state", self.layout.state)
        return True

    def _prepare(self) -> None:
        self._say("First run: making databases, users and endpoints (kept for later runs)")
        self.layout.state.mkdir(parents=True, mode=0o700)
        parts = self._parts()
        parts.database.create(self.daemons)
        self.daemons.bring_up([parts.database.daemon()])
        parts.database.create_databases()
        services.configure(parts)
        self._say("Making the tables of keystone, glance, placement, neutron and nova")
        with concurrent.futures.ThreadPoolExecutor() as pool:
            chains = [pool.submit(self._chain, name, commands)
                      for name, commands in services.schema_commands(self.layout, self.shape).items()]
            for chain in concurrent.futures.as_completed(chains):
                chain.result()
        self._say("Making users and endpoints")
        identity.bootstrap(self.layout, self.ports, parts.passwords, self.daemons)
        identity.write_clouds_yaml(self.layout, self.ports, parts.passwords)
        self.daemons.bring_up([services.api(self.layout, self.ports, "keystone")])
        with self.connect("admin") as admin:
            identity.populate(admin, self.ports, parts.passwords, self.shape)
        self.daemons.stop(["keystone-api", "mariadb"])
        self._keep_prepared()

    def _chain(self, name: str, commands: Iterable[tuple[str, ...]]) -> None:
        for command in commands:
            self.daemons.run(name, command)

    def _keep_prepared(self) -> None:
        """Keep the prepared state; the note is written last, so that an incomplete copy is never used."""
        shutil.rmtree(self.layout.prepared, ignore_errors=True)
        self.layout.prepared.mkdir(parents=True, mode=0o700)
        shutil.copytree(self.layout.state, self.layout.prepared / "state")
        (self.layout.prepared / "for").write_text(self._prepared_for())

    # -- starting

    def _start_control(self, networking: Networking | None) -> None:
        """All but nova-compute. The conductor and the scheduler look for other services in keystone when they start."""
        parts = self._parts()
        services.configure(parts)
        identity.write_clouds_yaml(self.layout, self.ports, parts.passwords)
        parts.messages.configure()
        epmd, rabbitmq = parts.messages.daemons()
        self.daemons.bring_up([parts.database.daemon(), epmd])
        self._say("MariaDB answers; starting RabbitMQ and the APIs")
        names = (*APIS, *(["metadata"] if networking else []), *(["cinder"] if self.shape.volumes else []))
        apis = [services.api(self.layout, self.ports, name) for name in names]
        for daemon in (rabbitmq, *apis):
            self.daemons.start(daemon)
        for name in (rabbitmq.name, "keystone-api"):
            self.daemons.wait(name)
        for name in CONTROL_WORKERS:
            self.daemons.start(services.nova_daemon(self.layout, name))
        if self.shape.volumes:
            for name in volumes.WORKERS:
                self.daemons.start(volumes.worker(self.layout, name))
        if networking:
            networking.configure()
            networking.start_servers()
            networking.start_switch()
        for daemon in apis:
            self.daemons.wait(daemon.name)
        self._say("RabbitMQ, keystone, glance, placement, neutron and nova's API answer")

    def _start_compute(self, admin: Connection) -> None:
        """nova-compute asks the conductor for everything: started before it, it would wait ten seconds in vain."""
        list(admin.network.networks())  # neutron 29 answers its very first question with 500 if that is for ports
        self._wait_until("the conductor and the scheduler are up", lambda: workers_up(admin, CONTROL_WORKERS))
        if not self.shape.compute:
            return
        self.daemons.start(services.compute_daemon(self.layout))
        if self.second:
            self.daemons.start(self.second.daemon(services.compute_daemon(self.layout, SECOND)))
        self.wait_for_compute(admin)

    def _start_dashboard(self) -> None:
        self._say("Starting Horizon; its style sheets take a minute the first time")
        dashboard.configure(self.layout, self.ports, Passwords(self.layout.state / "passwords.json"))
        dashboard.build(self.layout, self.daemons)
        self.daemons.bring_up([dashboard.exporter(self.ports, self.owners), dashboard.daemon(self.layout, self.ports)])
        self._say(f"Horizon answers at {dashboard.url(self.ports)}")

    def _computes_up(self, admin: Connection) -> bool:
        running = [service for service in admin.compute.services(binary="nova-compute") if service.state == "up"]
        return len(running) == len(list(admin.compute.hypervisors())) == len(self.engines)

    def _wait_until(self, what: str, holds: Callable[[], bool], limit: float = 600) -> None:
        """Wait until something holds.

        :raises DaemonFailed: not within ``timeout`` seconds, or a process of nova ended meanwhile
        """
        deadline = time.monotonic() + limit
        while not holds():
            self.daemons.check()
            if time.monotonic() > deadline:
                raise DaemonFailed(f"Waited {limit:.0f} s in vain until {what}; see the logs in {self.layout.logs}")
            time.sleep(POLL_INTERVAL)
        self._say(f"Now {what}")


def workers_up(admin: Connection, names: Iterable[str]) -> bool:
    return {service.binary for service in admin.compute.services() if service.state == "up"}.issuperset(names)


def unmount_below(directory: Path) -> None:
    """Unmount what is below a directory, which must have no mounts when it is deleted recursively.

    A killed daemon leaves its mounts."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for point in sorted((point for point in points if point.startswith(f"{directory}/")), reverse=True):
        subprocess.run(("umount", "--lazy", point), check=True, capture_output=True)
