# SPDX-License-Identifier: Apache-2.0
"""Choose the servers that share memory; the functional tests check the memory itself."""

import fixtures
import testtools
from nova import exception, objects

from containerhost import errors
from nova_lxd_ext.server import jobmemory
from tests.unit.nova import records

GROUP = "b6a4a3c2-6a4e-4c36-9d38-7c1b9a1f0e01"


class WantedTest(testtools.TestCase):
    def wanted(self, project: str | None, **extra_specs: str) -> jobmemory.JobMemory | None:
        """Return what a server gets whose server group is of a project; None is no group."""

        def group(context: object, server: str) -> objects.InstanceGroup:
            if project is None:
                raise exception.InstanceGroupNotFound(group_uuid="")
            return objects.InstanceGroup(uuid=GROUP, project_id=project)

        self.useFixture(fixtures.MonkeyPatch("nova.objects.InstanceGroup.get_by_instance_uuid", staticmethod(group)))
        return jobmemory.wanted(records.instance(extra_specs={key.replace("__", ":"): value
                                                              for key, value in extra_specs.items()}))

    def test_job_is_the_server_group_of_the_servers_project(self) -> None:
        self.assertEqual(jobmemory.JobMemory(records.PROJECT, GROUP, 4 << 20),
                         self.wanted(records.PROJECT, hpc__shared_memory="4"))

    def test_server_group_of_another_project_is_refused(self) -> None:
        error = self.assertRaises(errors.SpecError, self.wanted, "other", hpc__shared_memory="4")
        self.assertIn(f"Server group {GROUP} belongs to another project", str(error))

    def test_no_server_group_and_odd_sizes_are_refused(self) -> None:
        self.assertIn("in no server group", str(self.assertRaises(errors.SpecError, self.wanted, None,
                                                                   hpc__shared_memory="4")))
        for size in ("0", "513", "-1", "1.5", "many", "\u0664"):
            self.assertRaises(errors.SpecError, self.wanted, records.PROJECT, hpc__shared_memory=size)

    def test_nothing_is_asked_of_nova_without_the_key(self) -> None:
        self.assertIsNone(self.wanted(None))
