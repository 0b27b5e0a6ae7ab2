# SPDX-License-Identifier: Apache-2.0
"""Request data from Placement and nova with the token of the panel's user."""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from horizon.exceptions import NotAuthenticated, ServiceCatalogException
from keystoneauth1 import session, token_endpoint
from keystoneauth1.exceptions import ClientException
from openstack.connection import Connection
from openstack.exceptions import SDKException, raise_from_response
from openstack_dashboard.api import base
from requests import RequestException

from nova_lxd_dashboard import accelerators, pciids
from nova_lxd_dashboard.accelerators import Device, Service

HOSTS_PER_PAGE = 10
"""Placement answers for one provider at a time, so a page has the devices of this many hosts."""

COMPUTE = "2.47"
"""The microversion from which on a server shows its flavor's keys."""

PLACEMENT = "1.14"
"""The microversion from which on a provider shows its parent and root."""

TIMEOUT = 60
"""Seconds for one request."""

UNAUTHORIZED = 401


class ServiceFailed(Exception):
    """Signal that a service refused, did not answer, or is not in the catalog."""


@dataclasses.dataclass(frozen=True)
class Page:
    """Hold one page of the list of devices, which has the devices of :data:`HOSTS_PER_PAGE` hosts.

    :ivar servers: name by UUID, of the servers that hold some of the devices
    :ivar more: whether further hosts follow
    """

    devices: list[Device]
    servers: Mapping[str, str]
    last_host: str
    more: bool


@dataclasses.dataclass(frozen=True)
class Holder:
    """Describe a server whose flavor requests devices."""

    id: str
    name: str
    status: str
    flavor: str
    requests: tuple[str, ...]


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Raise the services' errors as classes that Horizon handles correctly.

    By default, it treats every HTTP error of openstacksdk as an unauthorized user
    (``openstack_dashboard.exceptions.UNAUTHORIZED``)."""
    try:
        yield
    except (ClientException, RequestException, SDKException, ServiceCatalogException) as error:
        if UNAUTHORIZED in (getattr(error, "status_code", None), getattr(error, "http_status", None)):
            raise NotAuthenticated(str(error)) from error
        raise ServiceFailed(str(error)) from error


def connect(request: HttpRequest, service: str) -> Any:
    """Return openstacksdk's proxy for one service, ``compute`` or ``placement``."""
    verify = settings.OPENSTACK_SSL_CACERT or True
    auth = token_endpoint.Token(base.url_for(request, service), request.user.token.id)
    connection = Connection(region_name=request.user.services_region, session=session.Session(
        auth=auth, verify=verify and not settings.OPENSTACK_SSL_NO_VERIFY, timeout=TIMEOUT))
    return getattr(connection, service)


@_translated()
def page_of_devices(request: HttpRequest, after: str = "") -> Page:
    """Return the devices of the hosts whose names follow one.

    :raises ServiceFailed: nova or Placement failed
    :raises horizon.exceptions.NotAuthenticated: the user's token is no longer valid
    """
    placement, compute = connect(request, "placement"), connect(request, "compute")
    providers = _get(placement, "/resource_providers")["resource_providers"]
    with_devices = {provider["root_provider_uuid"] for provider in providers if provider["parent_provider_uuid"]}
    roots = sorted((provider["name"], provider["uuid"]) for provider in providers
                   if provider["uuid"] in with_devices and provider["name"] > after)
    shown = dict(itertools.islice(((uuid, name) for name, uuid in roots), HOSTS_PER_PAGE))
    providers = [provider for provider in providers if provider["root_provider_uuid"] in shown]
    below = [provider["uuid"] for provider in providers if provider["parent_provider_uuid"]]
    inventories = {uuid: _get(placement, f"/resource_providers/{uuid}/inventories")["inventories"] for uuid in below}
    allocations = {uuid: _get(placement, f"/resource_providers/{uuid}/allocations")["allocations"] for uuid in below}
    reserved = [uuid for uuid, inventory in inventories.items() if any(
        accelerators.is_reserved(entry["total"], entry.get("reserved", 0)) for entry in inventory.values())]
    traits = {uuid: _get(placement, f"/resource_providers/{uuid}/traits")["traits"] for uuid in reserved}
    found = accelerators.devices(providers, inventories, allocations, services(compute), traits)
    holders = {uuid for device in found for uuid in device.servers}
    hosts = {device.service.host for device in found if device.service and device.servers}
    return Page(found, _names(compute, holders, hosts), max(shown.values(), default=""),
                len(roots) > HOSTS_PER_PAGE)


def services(compute: Any) -> Mapping[str, Service]:
    """Return nova-compute of each host, by the host's name in Placement: its hypervisor's."""
    return {hypervisor.name: Service(
        hypervisor.state == "up",
        (hypervisor.service_details.get("disabled_reason") or "no reason given")
        if hypervisor.status == "disabled" else "", hypervisor.service_details["host"], hypervisor.host_ip or "")
        for hypervisor in compute.hypervisors(details=True)}


@_translated()
def service_of(request: HttpRequest, host: str) -> Service | None:
    """Return nova failed-compute of a host; None if nova has no such host.

    :raises ServiceFailed: nova
    :raises horizon.exceptions.NotAuthenticated: the user's token is no longer valid
    """
    return services(connect(request, "compute")).get(host)


@_translated()
def holders(request: HttpRequest) -> list[Holder]:
    """Return the servers of the user's project that request devices.

    :raises ServiceFailed: nova
    :raises horizon.exceptions.NotAuthenticated: the user's token is no longer valid
    """
    compute = connect(request, "compute")
    compute.default_microversion = COMPUTE
    found = ((server, tuple(accelerators.requests(server.flavor.extra_specs or {}, pciids.model)))
             for server in compute.servers())
    return [Holder(server.id, server.name, server.status, server.flavor.original_name, wanted)
            for server, wanted in found if wanted]


def _names(compute: Any, uuids: Iterable[str], hosts: Iterable[str]) -> Mapping[str, str]:
    wanted = set(uuids)
    return {server.id: server.name for host in hosts
            for server in compute.servers(all_projects=True, compute_host=host) if server.id in wanted}


def _get(placement: Any, path: str) -> Any:
    answer = placement.get(path, microversion=PLACEMENT)
    raise_from_response(answer)
    return answer.json()
