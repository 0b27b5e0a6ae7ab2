# SPDX-License-Identifier: Apache-2.0
import fixtures
import oslo_messaging as messaging
import testtools
from nova import exception, objects

from nova_lxd_ext.server import failure_events
from tests.unit.nova import records


class FailureEventsTest(testtools.TestCase):
    def test_error_is_raised_when_its_event_cannot_be_recorded(self) -> None:
        def attach() -> None:
            with failure_events.record_failure(None, records.instance(), failure_events.ATTACH):
                raise ValueError("no switch")

        for failure in (exception.InstanceNotFound(instance_id=records.UUID), messaging.MessagingTimeout("conductor")):
            with fixtures.MockPatchObject(objects.InstanceActionEvent, "event_start", side_effect=failure):
                self.assertRaises(ValueError, attach)
