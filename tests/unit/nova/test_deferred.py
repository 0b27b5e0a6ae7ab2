# SPDX-License-Identifier: Apache-2.0
import fixtures
import testtools

from nova_lxd_ext.server.deferred import Deferred


class DeferredTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.timer = self.useFixture(fixtures.MockPatch("threading.Timer")).mock
        self.deferred, self.called = Deferred(), list[str]()

    def test_nothing_is_called_before_nova_compute_has_started(self) -> None:
        """A start that fails is repeated, and would send each request once more."""
        self.deferred.call(5.0, "uuid", self.called.append, "first")
        self.timer.assert_not_called()
        for _ in range(2):
            self.deferred.started()
        self.deferred.call(0.0, "uuid", self.called.append, "second")
        self.assertEqual([5.0, 0.0], [call.args[0] for call in self.timer.call_args_list])
        for call in self.timer.call_args_list:
            call.args[1]()
        self.assertEqual(["first", "second"], self.called)

    def test_error_is_logged(self) -> None:
        log = self.useFixture(fixtures.FakeLogger())
        self.deferred.started()
        self.deferred.call(0.0, "uuid", self.called.pop)
        self.timer.call_args.args[1]()
        self.assertIn("pop from empty list", log.output)

    def test_nothing_is_called_after_the_end(self) -> None:
        self.deferred.started()
        self.deferred.call(0.0, "uuid", self.called.pop)
        self.deferred.stop()
        self.timer.return_value.cancel.assert_called_once_with()

    def test_next_start_in_the_same_process_is_waited_for(self) -> None:
        """A SIGHUP stops nova-compute and starts it again."""
        self.deferred.started()
        self.deferred.stop()
        self.deferred.call(0.0, "uuid", self.called.pop)
        self.timer.assert_not_called()
        self.deferred.started()
        self.timer.assert_called_once()
