# SPDX-License-Identifier: Apache-2.0
"""Test the meaning of LXD's events and commands; the connections themselves are tested on a real daemon."""

import testtools

from containerhost.engines.contract import Change, Status
from containerhost.engines.lxd import events


class EventsTest(testtools.TestCase):
    def test_only_what_changes_whether_a_container_runs(self) -> None:
        for action, source, expected in (
            ("instance-shutdown", "/1.0/instances/c1", Change("c1", Status.STOPPED)),
            ("instance-stopped", "/1.0/instances/c1?project=lab", Change("c1", Status.STOPPED)),
            ("instance-restarted", "/1.0/instances/c1", Change("c1", Status.RUNNING)),
            ("instance-paused", "/1.0/instances/c1", Change("c1", Status.FROZEN)),
            ("instance-exec", "/1.0/instances/c1", None),
            ("instance-started", "/1.0/instances/c1/snapshots/s", None),
            ("image-created", "/1.0/images/abc", None),
        ):
            with self.subTest(action):
                self.assertEqual(expected, events.change_of({"metadata": {"action": action, "source": source}}))
        self.assertIsNone(events.change_of({"metadata": None}))
