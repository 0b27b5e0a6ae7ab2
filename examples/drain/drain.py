#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Move all servers off a compute host, for maintenance or because its hardware fails.

    drain.py HOST --reason "new kernel" [--parallel 2] [--timeout 3600] [--dry-run] [--json]

As the cloud's administrator: OS_CLOUD names a cloud of clouds.yaml. The host's compute service is disabled first, so
that nothing is placed there any more. Then its servers are migrated (cold migration; the driver copies them while they
run, where the hosts can) and each migration is confirmed. Members of one MPI job (``hpcjob``) lose their job when one
of them stops, so they move together, and only if the job agrees: the property ``hpcjob_move=yes`` on each of them. What
cannot move stays as it is, with its reason. May end at any time and be started again. Status 1 if anything is left.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keystoneauth1.exceptions
import openstack

JOB, AGREES = "hpcjob", "hpcjob_move"  # metadata of servers
MOVABLE = ("ACTIVE", "SHUTOFF")
INTERVAL = 2.0  # s
REQUEST_TIMEOUT = 60  # s


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Tell what became of a server; ``to`` is empty when it stays, for a reason."""

    name: str
    id: str
    to: str = ""
    reason: str = ""
    seconds: float = 0.0


def groups(servers: Iterable[Any]) -> list[list[Any]]:
    """Return the servers that move together: those of a job; all others are alone. The largest groups first."""
    found: dict[str, list[Any]] = {}
    for server in servers:
        found.setdefault(server.metadata.get(JOB) or server.id, []).append(server)
    return sorted(found.values(), key=len, reverse=True)


def obstacle(group: Sequence[Any]) -> str:
    """Return why a group cannot move now, in words; empty if it can."""
    for server in group:
        if server.metadata.get(JOB) and server.metadata.get(AGREES) != "yes":
            return (f"job {server.metadata[JOB]} does not agree to move: its owner sets {AGREES}=yes on all of its "
                    f"members, or ends it")
    for server in group:
        if server.status not in MOVABLE:
            return f"{server.name} is {server.status}: only servers that are {' or '.join(MOVABLE)} migrate"
        if server.task_state:
            return f"{server.name} is busy ({server.task_state}): try again"
    return ""


class Drain:
    """:param timeout: seconds for the move of one server"""

    def __init__(self, compute: Any, host: str, timeout: float, say: Callable[[str], object],
                 sleep: Callable[[float], None] = time.sleep) -> None:
        self._compute = compute
        self._host = host
        self._timeout = timeout
        self._say = say
        self._sleep = sleep

    def _services(self) -> list[Any]:
        """Return the host's compute services; exit for a host without: a misspelled one would look empty."""
        services = list(self._compute.services(host=self._host, binary="nova-compute"))
        if not services:
            raise SystemExit(f"there is no compute service of host {self._host}: openstack compute service list")
        return services

    def disable(self, reason: str) -> None:
        for service in self._services():
            if service.status != "disabled":
                self._compute.disable_service(service, self._host, "nova-compute", reason)

    def servers(self) -> list[Any]:
        return list(self._compute.servers(all_projects=True, compute_host=self._host))

    def unconfirmed(self) -> list[Outcome]:
        """Return the servers whose migration from this host nobody has confirmed yet, as an earlier run may leave."""
        return [Outcome(move.server_id, move.server_id, to=move.dest_compute, reason=(
                    f"it has moved and waits for its confirmation: openstack server resize confirm {move.server_id}"))
                for move in self._compute.migrations(host=self._host, status="finished", migration_type="migration")
                if move.source_compute == self._host]

    def plan(self) -> list[Outcome]:
        self._services()
        return [Outcome(server.name, server.id, reason=obstacle(group) or "would move")
                for group in groups(self.servers()) for server in group]

    def run(self, reason: str, parallel: int) -> list[Outcome]:
        """Disable the host's service, and move what is there and what was on its way there.

        :param parallel: how many groups move at once
        """
        self.disable(reason)
        outcomes: dict[str, Outcome] = {}
        with concurrent.futures.ThreadPoolExecutor(max(1, parallel)) as pool:
            while new := [server for server in self.servers() if server.id not in outcomes]:
                for found in pool.map(self.move, groups(new)):
                    outcomes.update((outcome.id, outcome) for outcome in found)
        return [*outcomes.values(), *self.unconfirmed()]

    def move(self, group: Sequence[Any]) -> list[Outcome]:
        """Move servers, all at once, and return what became of each."""
        if reason := obstacle(group):
            return [Outcome(server.name, server.id, reason=reason) for server in group]
        with concurrent.futures.ThreadPoolExecutor(len(group)) as pool:
            return list(pool.map(self._moved, group))

    def _moved(self, server: Any) -> Outcome:
        self._say(f"{server.name}: migrates")
        began = time.monotonic()
        try:
            found = self._migrate(server)
        except openstack.exceptions.SDKException as error:
            found = Outcome(server.name, server.id, reason=str(error))
        self._say(f"{server.name}: {found.reason or f'moved to {found.to}'}")
        return dataclasses.replace(found, seconds=round(time.monotonic() - began, 1))

    def _migrate(self, server: Any) -> Outcome:
        earlier = {action.request_id for action in self._migrations(server)}
        self._compute.migrate_server(server)
        end = time.monotonic() + self._timeout
        while time.monotonic() < end:
            self._sleep(INTERVAL)
            now = self._compute.get_server(server)
            if now.status == "VERIFY_RESIZE":
                self._compute.confirm_server_resize(server)
                return Outcome(server.name, server.id, to=now.compute_host)
            failed = [action for action in self._migrations(server)
                      if action.request_id not in earlier and action.message]
            if failed and not now.task_state:
                return Outcome(server.name, server.id, reason=(
                    f"its migration failed: {self._details(server, failed[0].request_id)}"))
        return Outcome(server.name, server.id, reason=(
            f"it was not moved within {self._timeout:g} s and may still move: openstack server migration list --server "
            f"{server.id}"))

    def _details(self, server: Any, request: str) -> str:
        """Return why a request failed, or where to read it."""
        events = self._compute.get_server_action(request, server).events or ()
        details = dict.fromkeys(event.details for event in events if event.details)
        return "; ".join(details) or f"openstack server event show {server.id} {request}"

    def _migrations(self, server: Any) -> list[Any]:
        return [action for action in self._compute.server_actions(server) if action.action == "migrate"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("host", help="as openstack compute service list shows it")
    parser.add_argument("--reason", default="drained", help="why the service is disabled (%(default)s)")
    parser.add_argument("--parallel", type=int, default=2, help="how many servers or jobs move at once (%(default)s)")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds for one server (%(default)g)")
    parser.add_argument("--dry-run", action="store_true", help="only tell what would move")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    chosen = parser.parse_args()
    try:
        drain = Drain(openstack.connect(api_timeout=REQUEST_TIMEOUT).compute, chosen.host, chosen.timeout,
                      lambda text: print(text, file=sys.stderr, flush=True))
        outcomes = drain.plan() if chosen.dry_run else drain.run(chosen.reason, chosen.parallel)
    except (openstack.exceptions.SDKException, keystoneauth1.exceptions.ClientException) as error:
        raise SystemExit(f"{error} (OS_CLOUD names the cloud of clouds.yaml, as its administrator)") from error
    if chosen.json:
        print(json.dumps([dataclasses.asdict(outcome) for outcome in outcomes]))
    else:
        for outcome in outcomes:
            print(f"{outcome.name}  {outcome.to or '-'}  {outcome.seconds:g} s  {outcome.reason}".rstrip())
    return 0 if chosen.dry_run else int(any(outcome.reason for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
