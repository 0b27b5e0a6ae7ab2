# SPDX-License-Identifier: Apache-2.0
"""The servers of a job through nova's API and scheduler, with the filter and the weigher of task groups."""

from tests.functional.nova import twohosts  # isort: skip (decides how nova runs)

import collections
from typing import Any

from tests import levels
from tests.functional.nova import base
from tests.functional.nova.twohosts import FIRST, SECOND

FILTER = "nova_lxd_ext.scheduler.TaskGroupFilter"
WEIGHER = "nova_lxd_ext.scheduler.TaskGroupWeigher"


class TaskGroupsTest(twohosts.TwoHosts):
    def _configure(self) -> None:
        super()._configure()
        enabled = base.CONF.filter_scheduler.enabled_filters
        self.flags(available_filters=["nova.scheduler.filters.all_filters", FILTER],
                   weight_classes=["nova.scheduler.weights.all_weighers", WEIGHER],
                   enabled_filters=[*enabled, "TaskGroupFilter"], group="filter_scheduler")

    def setUp(self) -> None:
        super().setUp()
        for host, rack in ((FIRST, "2"), (SECOND, "1")):
            aggregate = self.admin_api.post_aggregate({"aggregate": {"name": f"rack {rack}"}})
            self.admin_api.add_host_to_aggregate(aggregate["id"], host)
            self.admin_api.post_aggregate_action(aggregate["id"], {"set_metadata": {"metadata": {"rack": rack}}})

    def group(self, policy: str = "soft-anti-affinity") -> str:
        return str(self.api.post_server_groups({"name": "job", "policy": policy})["id"])

    def job(self, count: int, flavor: str | None = None, group: str | None = None, **hints: Any
            ) -> list[dict[str, Any]]:
        body = self._build_server(image_uuid=self.image(), flavor_id=flavor or self.flavor(), networks="none")
        body |= {"name": "job", "min_count": count, "max_count": count}
        known = {server["id"] for server in self.api.get_servers(detail=False)}
        self.api.post_server({"server": body, "os:scheduler_hints": {
            "group": group or self.group(), **{key: str(value) for key, value in hints.items()}}})
        made = [server for server in self.api.get_servers() if server["id"] not in known]
        self.assertEqual(count, len(made))
        return sorted(made, key=lambda server: str(server["name"]))  # job-1, job-2, ...: in rank order

    def gone(self, servers: list[dict[str, Any]]) -> None:
        for server in servers:
            self._delete_server(server)
        self.assert_both_empty()

    def test_groups_are_spread_in_the_order_of_the_network(self) -> None:
        servers = [self._wait_for_state_change(server, "ACTIVE") for server in self.job(4, task_groups=2)]
        self.assertEqual([SECOND, SECOND, FIRST, FIRST], [self.host_of(server) for server in servers])
        self.gone(servers)

    @levels.exhaustive("units show the choice of hosts; one test of nova remains")
    def test_one_after_the_other_as_in_one_request(self) -> None:
        flavor, group, servers = self.flavor(), self.group(), []
        for rank in range(4):
            servers += self.job(1, flavor, group, task_groups=2, task_members=4, task_rank=rank)
            servers[rank] = self._wait_for_state_change(servers[rank], "ACTIVE")
        self.assertEqual([SECOND, SECOND, FIRST, FIRST], [self.host_of(server) for server in servers])
        self.gone(servers)

    @levels.exhaustive("units show it; a job that is spread remains")
    def test_a_job_larger_than_the_cloud_starts_nothing(self) -> None:
        gpu = self.flavor(pci_passthrough__alias=f"{base.GPU_ALIAS}:1")  # each host has one
        servers = [self._wait_for_state_change(server, "ERROR") for server in self.job(3, gpu, task_groups=2)]
        for server in servers:
            self.assertIn("no hosts have room for 3 servers of the job with 2 task groups", self.fault(server))
            self.assertEqual({}, self._get_allocations_by_server_uuid(server["id"]))
        self.gone(servers)
        servers = [self._wait_for_state_change(server, "ACTIVE") for server in self.job(2, gpu, task_groups=2)]
        self.assertEqual({FIRST: 1, SECOND: 1}, collections.Counter(map(self.host_of, servers)))
        self.gone(servers)

    @levels.exhaustive("units show it; a job that is spread remains")
    def test_wrong_hints_are_told_in_the_fault(self) -> None:
        for hints, words in (({"task_groups": 3}, "task_groups=3 is more than the job's 2 servers"),
                             ({"task_groups": "many"}, "is not a number")):
            servers = [self._wait_for_state_change(server, "ERROR") for server in self.job(2, **hints)]
            self.assertIn(words, self.fault(servers[0]))
            self.gone(servers)
