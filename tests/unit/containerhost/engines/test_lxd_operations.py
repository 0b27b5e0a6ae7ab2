# SPDX-License-Identifier: Apache-2.0
import testtools

from containerhost.engines.lxd import operations


class OperationsTest(testtools.TestCase):
    def test_what_works_on_a_container_and_ends_by_itself(self) -> None:
        for description, kind, url, creates, changes in (
            ("Creating instance", "task", "/1.0/instances/c1", True, True),
            ("Creating container", "task", "/1.0/containers/c1?project=lab", True, True),
            ("Updating instance", "task", "/1.0/instances/c1", False, True),
            ("Updating instance", "task", "/1.0/instances/c11", False, False),
            ("Executing command", "websocket", "/1.0/instances/c1", False, False),
        ):
            with self.subTest(description, url=url):
                operation = {"description": description, "class": kind, "resources": {"instances": [url]}}
                self.assertEqual((creates, changes), (operations.creates(operation, "c1"),
                                                      operations.changes(operation, "c1")))
        self.assertFalse(operations.concerns({"resources": None}, "c1"))
