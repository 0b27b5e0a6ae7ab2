# SPDX-License-Identifier: Apache-2.0
import testtools
from nova import exception
from nova.compute import task_states

from containerhost import errors
from nova_lxd_ext.errors import LXDError, LXDUnavailable, as_nova, rebuilding, translated
from tests.unit.nova import records

WORDS = "device 0000:3b:00.0 cannot be given: container train-2 holds it"


class Driver:
    @translated(exception.InstanceRebootFailure)
    def reboot(self, context: object, instance: object, error: Exception | None = None) -> str:
        if error:
            raise error
        return "done"

    @translated()
    def list_instances(self, error: Exception) -> None:
        raise error


class TranslatedTest(testtools.TestCase):
    def test_each_kind_of_error_gets_novas_class_and_keeps_its_words(self) -> None:
        table: list[tuple[type[Exception], type[Exception]]] = [
            (errors.EngineNotFound, exception.InstanceNotFound),
            (errors.EngineUnavailable, exception.HypervisorUnavailable),
            (errors.DeviceHeld, exception.ComputeResourcesUnavailable),
            (errors.DeviceNotFound, exception.ComputeResourcesUnavailable),
            (errors.DeviceUnhealthy, exception.ComputeResourcesUnavailable),
            (errors.AllocationsUnreadable, exception.ComputeResourcesUnavailable),
            (errors.SpecError, exception.InstanceRebootFailure),
            (errors.UnsupportedOnHost, exception.InstanceRebootFailure),
            (errors.StorageFull, exception.InstanceRebootFailure),
            (errors.EngineTimeout, exception.InstanceRebootFailure),
            (errors.ContainerHostError, exception.InstanceRebootFailure),
        ]
        for raised, expected in table:
            for arguments in ({"instance": records.instance()}, {}):
                positional = () if arguments else (records.instance(),)
                with self.subTest(raised=raised.__name__, by_name=bool(arguments)):
                    error = self.assertRaises(expected, Driver().reboot, None, *positional, error=raised(WORDS),
                                              **arguments)
                    self.assertIn(WORDS, error.format_message())
                    self.assertIsInstance(error.__cause__, raised)

    def test_while_booting_a_bad_flavor_aborts_and_what_another_host_may_give_does_not(self) -> None:
        table = [(errors.SpecError, exception.BuildAbortException), (errors.EngineNotFound, LXDError),
                 (errors.UnsupportedOnHost, exception.ComputeResourcesUnavailable)]
        for raised, expected in table:
            with self.subTest(raised.__name__):
                def boot(raised: type[Exception] = raised) -> None:
                    with as_nova(records.instance(), booting=True):
                        raise raised(WORDS)
                self.assertIn(WORDS, self.assertRaises(expected, boot).format_message())

    def test_without_a_server_nothing_can_be_not_found_or_aborted(self) -> None:
        for raised, expected in ((errors.EngineNotFound, LXDError), (errors.SpecError, LXDError),
                                 (errors.EngineUnavailable, LXDUnavailable)):
            with self.subTest(raised.__name__):
                error = self.assertRaises(expected, Driver().list_instances, raised(WORDS))
                self.assertEqual(WORDS, error.format_message())

    def test_novas_own_errors_and_bugs_pass_through(self) -> None:
        for raised in (exception.ImageUnacceptable(image_id="1", reason="no"), KeyError("bug")):
            with self.subTest(type(raised).__name__):
                self.assertRaises(type(raised), Driver().reboot, None, records.instance(), error=raised)

    def test_a_result_is_returned(self) -> None:
        self.assertEqual("done", Driver().reboot(None, records.instance()))

    def test_percent_signs_in_a_message_are_text(self) -> None:
        def fail() -> None:
            with as_nova(records.instance()):
                raise errors.EngineNotFound("pool at 100%d")
        self.assertIn("100%d", self.assertRaises(exception.InstanceNotFound, fail).format_message())


class RebuildingTest(testtools.TestCase):
    def raised(self, **changes: object) -> type[Exception]:
        server = records.instance(**{"host": "here", "task_state": task_states.REBUILD_SPAWNING} | changes)
        try:
            with rebuilding(server, "here"):
                raise exception.ComputeResourcesUnavailable(reason="the GPU is gone")
        except exception.NovaException as error:
            self.assertIn("the GPU is gone", str(error))
            return type(error)

    def test_failed_rebuild_is_no_refused_claim(self) -> None:
        """Nova leaves a server ACTIVE whose claim was refused; this one's container is gone."""
        for state in (task_states.REBUILDING, task_states.REBUILD_SPAWNING):
            self.assertIs(LXDError, self.raised(task_state=state))

    def test_boot_and_evacuation_may_try_another_host(self) -> None:
        self.assertIs(exception.ComputeResourcesUnavailable, self.raised(task_state=task_states.SPAWNING))
        self.assertIs(exception.ComputeResourcesUnavailable, self.raised(host="failed host"))
