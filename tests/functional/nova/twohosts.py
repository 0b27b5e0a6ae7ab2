# SPDX-License-Identifier: Apache-2.0
"""Two compute hosts in this process, each with a real LXD daemon of its own and its own half of the devices."""

from tests.functional.nova import base  # isort: skip (decides how nova runs)

import functools
import json
import threading
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import fixtures

from containerhost.allocation.store import AllocationStore
from containerhost.engines.capabilities import Disk
from containerhost.engines.contract import ContainerState
from containerhost.engines.lxd.engine import LxdEngine
from nova_lxd_ext.driver import LXDDriver
from nova_lxd_ext.instance import labels
from nova_lxd_ext.server.incoming import IncomingMigrations
from tests.functional import lxd
from tests.ports import free_port

FIRST, SECOND = base.HOST, "lxd-2"
HALVES = {FIRST: ("0000:3b:00.0", "0000:5e:00.*"), SECOND: ("0000:af:00.0", "0000:d8:00.*")}  # GPU, VFs
LISTENING = threading.Lock()


class SecondLxd(lxd.Lxd):
    which = 2


class Directories(fixtures.Fixture):
    """Keep each host's directories of servers under its own name, although there is one nova.conf.

    Whose work a thread does is shown by the daemon that it works with.

    :param hosts: by the daemon's socket
    """

    def __init__(self, hosts: Mapping[str | None, str]) -> None:
        super().__init__()
        self._hosts = hosts
        self._here = threading.local()

    def _setUp(self) -> None:
        self.useFixture(fixtures.MonkeyPatch("nova_lxd_ext.storage.directories._name",
                                             lambda: f"lxd-{self._here.host}"))
        for kind, engine in ((LXDDriver, lambda driver: driver._backend.engine),
                             (IncomingMigrations, lambda it: it._engine)):
            for name, method in vars(kind).items():
                if callable(method) and not name.startswith("_"):
                    self.useFixture(fixtures.MonkeyPatch(f"{kind.__module__}.{kind.__name__}.{name}",
                                                         self._knowing(method, engine)))

    def _knowing(self, method: Callable[..., Any], engine: Callable[[Any], LxdEngine]) -> Callable[..., Any]:
        @functools.wraps(method)
        def wrapper(this: Any, *args: Any, **kwargs: Any) -> Any:
            self._here.host = self._hosts[engine(this).client.settings.endpoint]
            return method(this, *args, **kwargs)
        return wrapper


def listening(engine: LxdEngine) -> str:
    """Let the daemon listen on https; the address, which stays the same."""
    with LISTENING:
        present = engine.client.server()["config"].get("core.https_address")
        if present is None:
            present = f"127.0.0.1:{free_port()}"
            engine.client.request("patch", asked="listen", json={"config": {"core.https_address": present}})
    return f"https://{present}"


def nodes(driver: LXDDriver, refresh: bool = False) -> dict[str, str]:
    (name,) = driver.get_available_nodes()
    return {str(uuid.uuid5(uuid.NAMESPACE_DNS, name)): name}


def resources(driver: LXDDriver, nodename: str, original: Any = LXDDriver.get_available_resource) -> dict[str, Any]:
    (node,) = nodes(driver)
    return original(driver, nodename) | {"uuid": node}


class TwoHosts(base.LxdServers):
    """Servers are made on the first host; the second is the only other one."""

    second_daemon: type[lxd.Lxd] = SecondLxd
    options: ClassVar[Mapping[tuple[str | None, str], Any]] = {(None, "allow_resize_to_same_host"): False}
    #: Of the virtual functions alone, beside ``pci_tags``.
    vf_tags: ClassVar[Mapping[str, str]] = {}

    def setUp(self) -> None:
        self.second = self.useFixture(self.second_daemon())
        # Nova identifies a host by an id in a file of its machine; here both hosts are one machine.
        for name, method in (("get_nodenames_by_uuid", nodes), ("get_available_resource", resources)):
            self.useFixture(fixtures.MonkeyPatch(f"nova_lxd_ext.driver.LXDDriver.{name}", method))
        super().setUp()

    def _configure(self) -> None:
        super()._configure()
        self.useFixture(Directories({self.engine(host).client.settings.endpoint: host for host in (FIRST, SECOND)}))

    def _setup_compute_service(self) -> Any:
        first = self._start_compute(FIRST)
        self._start_compute(SECOND)
        return first

    def start_service(self, name: str, host: str | None = None, **options: Any) -> Any:
        if name == "compute" and host:
            self.configure_host(host)
        return super().start_service(name, host=host, **options)

    def configure_host(self, host: str) -> None:
        """Drivers take what differs between hosts from nova.conf when they are made."""
        engine = self.engine(host)
        self.flags(endpoint=engine.client.settings.endpoint, owners_dir=str(self.owners(host)),
                   migration_address=listening(engine), group="lxd")
        ids = [{key: spec[key] for key in ("vendor_id", "product_id")} for spec in self.kinds()]
        specs = [{"address": address, **ids_of_kind, **self.pci_tags, **tags}
                 for address, ids_of_kind, tags in zip(HALVES[host], ids, ({}, self.vf_tags), strict=True)]
        self.flags(device_spec=[json.dumps(spec) for spec in specs], group="pci")

    def kinds(self) -> list[dict[str, str]]:
        """Ids of the GPUs and of the VFs, in the order of HALVES."""
        aliases = {alias["name"]: alias for alias in map(json.loads, base.CONF.pci.alias)}
        return [aliases[base.GPU_ALIAS], aliases[base.VF_ALIAS]]

    def engine(self, host: str) -> LxdEngine:
        return self.lxd.engine if host == FIRST else self.second.engine

    def owners(self, host: str) -> Path:
        return self.state / f"owners-{host}"

    # Looking

    def host_of(self, server: Mapping[str, Any]) -> str:
        return str(self.admin_api.get_server(server["id"])["OS-EXT-SRV-ATTR:host"])

    def on(self, host: str) -> dict[str, ContainerState]:
        """The host's containers by the uuid of their server."""
        return {labels.uuid(state.labels) or state.name: state for state in self.engine(host).containers()}

    def disks_on(self, host: str) -> tuple[Disk, ...]:
        return (self.lxd if host == FIRST else self.second).disks.all()

    def directories_on(self, host: str) -> list[Path]:
        """Return the directories of the host's servers."""
        return list((self.state / "instances").glob(f"*/lxd-{host}"))

    def held_on(self, host: str) -> set[str]:
        """Ids of the devices that the host's containers hold."""
        return set(AllocationStore(self.owners(host)).records())

    def run_on(self, host: str, server: Mapping[str, Any], *command: str) -> base.Inside:
        return self.run_in(self.engine(host), self.on(host)[server["id"]].name, *command)

    def assert_both_empty(self) -> None:
        for host in (FIRST, SECOND):
            self.assertEqual(({}, (), []), (self.on(host), self.disks_on(host), self.directories_on(host)), host)
            self.assertEqual(set(), self.held_on(host), host)
        self.assert_nothing_left()
