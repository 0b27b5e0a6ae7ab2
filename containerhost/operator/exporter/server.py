# SPDX-License-Identifier: Apache-2.0
"""Serve the metrics and further pages over HTTP."""

import ipaddress
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app, start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from containerhost import vendors
from containerhost.allocation.store import AllocationStore
from containerhost.errors import HostActionFailed, SpecError
from containerhost.linux.sysfs import Host
from containerhost.operator.exporter import families, jobmapping
from containerhost.operator.exporter.sample import read

LOG = logging.getLogger(__name__)

NO_PAGES: Mapping[str, WSGIApplication] = MappingProxyType({})


class HostCollector(Collector):
    """Read the host at each scrape; concurrent scrapes wait for each other.

    :param job_mapping: directory of dcgm-exporter's job mapping files, updated at each scrape
    """

    def __init__(self, host: Host, store: AllocationStore, job_mapping: Path | None = None) -> None:
        self._host = host
        self._store = store
        self._job_mapping = job_mapping
        self._lock = threading.Lock()

    def describe(self) -> Iterator[Metric]:
        """Describe no metric in advance: otherwise the registry would scrape to learn the names."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            sample = read(self._host, self._store, vendors.usage if self._host.live else dict)
            if self._job_mapping is not None and sample.records is not None:
                try:
                    jobmapping.write(self._job_mapping, jobmapping.jobs(sample))
                except OSError as error:
                    LOG.error("The job mapping of dcgm-exporter cannot be written: %s", error)
        yield from families.families(sample)


def serve(address: str, collector: Collector, pages: Mapping[str, WSGIApplication] = NO_PAGES) -> threading.Thread:
    """Serve the metrics in a thread, and return it.

    :param address: IP address and port, ``127.0.0.1:9869`` or ``[::1]:9869``
    :param pages: further applications by path; every other path has the metrics
    :raises HostActionFailed: it cannot listen there
    """
    host, port = parsed(address)
    registry = CollectorRegistry()
    registry.register(collector)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise HostActionFailed(f"cannot listen at {address}: {error}; is another exporter running there?") from error
    metrics = make_wsgi_app(registry)

    def chosen(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return pages.get(environ["PATH_INFO"], metrics)(environ, start_response)

    server.set_app(chosen)
    return thread


def parsed(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    try:
        number = int(port) if port.isascii() and port.isdigit() else -1
        if not 0 < number < 1 << 16:
            raise ValueError(f"{port!r} is not a port")
        return str(ipaddress.ip_address(host.strip("[]"))), number
    except ValueError as error:
        raise SpecError(f"{address!r} is not ADDRESS:PORT, such as 127.0.0.1:9869: {error}") from error
