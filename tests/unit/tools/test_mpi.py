# SPDX-License-Identifier: Apache-2.0
"""Test that an MPI job's output is compared with its rank map."""

import json

import testtools

from hpcjob import job as jobs
from tools.mpi import job

MEMBERS = [job.Member(rank, rank // 2, f"ring-{rank}", f"10.0.0.{rank}", f"node{rank // 2}") for rank in range(4)]
OUTPUT = "0 ring-0 0 exchanged\n1 ring-1 1 exchanged\n2 ring-2 0,1 exchanged\n3 ring-3 1 exchanged\n4 ranks, sum 6\n"


class JobTest(testtools.TestCase):
    def by_rank_map(self, output: str) -> bool:
        return job.by_rank_map(MEMBERS, job.ranks(output), output)

    def test_example_is_a_job_for_both_clouds(self) -> None:
        example = jobs.parse(job.EXAMPLE.read_text())
        self.assertEqual({"openstack", "opennebula"}, set(example.clouds))
        self.assertEqual([0, 0, 1, 1], example.division())

    def test_changes_of_the_example(self) -> None:
        changed = jobs.parse(job.job_file(name="other", opennebula={"template": 7}))
        self.assertEqual(("other", 4, {"template": 7}), (changed.name, changed.members, changed.clouds["opennebula"]))

    def test_ranks_in_their_containers(self) -> None:
        self.assertTrue(self.by_rank_map(OUTPUT))
        self.assertEqual((0, 1), job.ranks(OUTPUT)[2].cores)

    def test_ranks_that_are_elsewhere_or_did_not_communicate(self) -> None:
        for output in ("", OUTPUT.replace("ring-1", "ring-0"), OUTPUT.replace("1 ring-1 1 exchanged\n", ""),
                       OUTPUT.replace("1 ring-1 1 exchanged", "1 ring-1 1 LOST"), OUTPUT.replace("sum 6", "sum 3"),
                       OUTPUT.replace("4 ranks", "1 ranks")):
            self.assertFalse(self.by_rank_map(output), output)

    def test_groups_on_hosts_of_their_own(self) -> None:
        self.assertTrue(job.spread(MEMBERS))
        self.assertFalse(job.spread([member._replace(host="node0") for member in MEMBERS]))
        self.assertFalse(job.spread([member._replace(host=f"node{member.rank % 2}") for member in MEMBERS]))
        self.assertFalse(job.spread([*MEMBERS[:3], MEMBERS[3]._replace(host="node2")]))

    def test_lines_name_host_container_and_cores(self) -> None:
        told = job.lines(MEMBERS, job.ranks(OUTPUT)[:3])
        self.assertEqual("rank 2: host node1, container ring-2, cores 0,1", told[2])
        self.assertTrue(told[3].endswith("cores unknown"))

    def test_id_of_a_job_that_starts_or_not(self) -> None:
        told = json.dumps({"id": "ring-1", "members": [member._asdict() for member in MEMBERS]})
        self.assertEqual(("ring-1", MEMBERS), job.started(told))
        self.assertEqual("ring-1", job.identified("job ring-1\nError: no\n"))
        self.assertEqual("", job.identified("Error: no\n"))
