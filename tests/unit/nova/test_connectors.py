# SPDX-License-Identifier: Apache-2.0
"""Test what is asked of os-brick, by its own interface: its connectors for real backends need those."""

import inspect
import threading
from typing import Any
from unittest import mock

import fixtures
import nova.conf
import testtools
from nova import exception
from os_brick import exception as brick
from os_brick.initiator import connector
from oslo_concurrency import processutils
from oslo_config import fixture as config_fixture

from nova_lxd_ext import conf
from nova_lxd_ext.storage import connectors, volumeconfig
from tests.waiting import await_that

conf.register()
DATA = {"target_portal": "10.0.0.1:3260", "auth_password": "hush"}
TIMEOUT = 60  # s


class ConnectorsTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.options = self.useFixture(config_fixture.Config(nova.conf.CONF))
        # Nothing of os-brick's is run as root here.
        self.useFixture(fixtures.MockPatch("os.geteuid", return_value=1000))
        self.backend = mock.Mock()
        self.backend.connect_volume.return_value = {"type": "block", "path": "/dev/sdb"}
        self.factory = self.useFixture(fixtures.MockPatchObject(
            connector.InitiatorConnector, "factory", return_value=self.backend)).mock
        self.checked = self.useFixture(fixtures.MockPatchObject(connectors, "require_block_device")).mock
        self.connectors = connectors.Connectors(nova.conf.CONF)
        self.late: list[Any] = []

    def connect(self) -> Any:
        return self.connectors.connect("vol-1", "iscsi", DATA, self.late.append)

    def test_connected_disconnected_extended(self) -> None:
        self.assertEqual({"type": "block", "path": "/dev/sdb"}, self.connect())
        self.backend.connect_volume.assert_called_once_with(DATA)
        self.connectors.disconnect("vol-1", "iscsi", DATA, {"path": "/dev/sdb"}, force=True)
        self.backend.disconnect_volume.assert_called_once_with(DATA, {"path": "/dev/sdb"}, force=True)
        self.backend.extend_volume.return_value = 2**30
        self.assertEqual(2**30, self.connectors.extend("vol-1", "iscsi", DATA))

    def test_os_brick_takes_what_it_is_given(self) -> None:
        self.options.config(volume_use_multipath=True, num_volume_scan_tries=7, iscsi_iface="eth5", group="libvirt")
        self.connect()
        arguments = self.factory.call_args
        self.assertEqual(("iscsi", True, 7, "eth5", True),
                         (arguments.args[0], *(arguments.kwargs[name] for name in (
                             "use_multipath", "device_scan_attempts", "transport", "do_local_attach"))))

    def test_every_kind_is_one_of_os_bricks_with_the_methods_that_are_called(self) -> None:
        known = connector.get_connector_mapping("x86_64")
        for kind in volumeconfig.KINDS:
            module, _, name = known[kind.upper()].rpartition(".")
            found = getattr(__import__(module, fromlist=[name]), name)
            with self.subTest(kind):
                self.assertIn("force", inspect.signature(found.disconnect_volume).parameters)
                self.assertTrue(callable(found.connect_volume) and callable(found.extend_volume))

    def test_a_backend_that_refuses(self) -> None:
        for failure in (brick.VolumeDeviceNotFound(device="sdb"), processutils.ProcessExecutionError("no route"),
                        OSError("no iscsiadm"), KeyError("target_portal")):
            with self.subTest(failure):
                self.backend.connect_volume.side_effect = failure
                error = self.assertRaises(exception.VolumeAttachFailed, self.connect)
                self.assertIn("vol-1", str(error))
                self.assertNotIn("hush", str(error))
        self.backend.disconnect_volume.side_effect = brick.BrickException("busy")
        self.assertRaises(connectors.BackendError, self.connectors.disconnect, "vol-1", "iscsi", DATA, None)
        self.backend.extend_volume.side_effect = brick.BrickException("gone")
        self.assertRaises(connectors.BackendError, self.connectors.extend, "vol-1", "iscsi", DATA)

    def gone(self) -> threading.Event:
        """Let connecting and disconnecting take until the event is set."""
        self.options.config(volume_timeout=1, group="lxd")
        back = threading.Event()
        self.addCleanup(back.set)

        def connect(data: Any) -> dict[str, str]:
            back.wait(TIMEOUT)
            return {"path": "/dev/sdb"}
        self.backend.connect_volume.side_effect = connect
        self.backend.disconnect_volume.side_effect = lambda *args, **kwargs: back.wait(TIMEOUT)
        return back

    def test_a_backend_that_is_gone(self) -> None:
        back = self.gone()
        error = self.assertRaises(exception.VolumeAttachFailed, self.connect)
        self.assertIn("not done within 1 s", str(error))
        back.set()
        await_that(lambda: self.late == [{"path": "/dev/sdb"}], "the late connection is told")
        self.backend.disconnect_volume.assert_not_called()

    def test_a_late_failure_is_logged_and_undoes_nothing(self) -> None:
        back, log = self.gone(), self.useFixture(fixtures.FakeLogger())

        def disconnect(*args: Any, **kwargs: Any) -> None:
            back.wait(TIMEOUT)
            raise OSError("no route")
        self.backend.disconnect_volume.side_effect = disconnect
        self.backend.connect_volume.side_effect = disconnect
        self.assertRaises(connectors.BackendError, self.connectors.disconnect, "vol-1", "iscsi", DATA, None)
        self.assertRaises(exception.VolumeAttachFailed, self.connectors.connect, "vol-2", "iscsi", DATA, self.fail)
        back.set()
        await_that(lambda: log.output.count("failed after its timeout: no route") == 2, "both are logged")

    def test_no_call_for_a_volume_overtakes_an_earlier_one_that_still_runs(self) -> None:
        back = self.gone()
        self.assertRaises(connectors.BackendError, self.connectors.disconnect, "vol-1", "iscsi", DATA, None)
        error = self.assertRaises(exception.VolumeAttachFailed, self.connect)
        self.assertIn("is still running", str(error))
        self.backend.connect_volume.assert_not_called()
        self.backend.connect_volume.side_effect = None
        self.connectors.connect("vol-2", "iscsi", DATA, self.late.append)
        back.set()
        self.connect()

    def test_what_is_no_block_device(self) -> None:
        self.checked.side_effect = ValueError("/etc/passwd is not a block device")
        error = self.assertRaises(exception.VolumeAttachFailed, self.connect)
        self.assertIn("not a block device", str(error))
        self.backend.disconnect_volume.assert_called_once()


class BlockDeviceTest(testtools.TestCase):
    def test_a_file_is_none(self) -> None:
        self.assertRaises(ValueError, connectors.require_block_device, __file__)
        self.assertRaises(FileNotFoundError, connectors.require_block_device, "/dev/no-such-device")


class RootTest(testtools.TestCase):
    def test_os_bricks_steps_as_root_are_done_by_a_process_that_is_root(self) -> None:
        for uid, expected in ((0, False), (1000, True)):
            contexts = [mock.Mock(client_mode=True) for _ in range(2)]
            for context in contexts:
                context.set_client_mode.side_effect = lambda mode, context=context: setattr(
                    context, "client_mode", mode)
            with self.subTest(uid=uid), mock.patch("os.geteuid", return_value=uid), \
                    mock.patch("os_brick.privileged.default", contexts[0]), \
                    mock.patch("os_brick.privileged.brick_privsep_hide_output", contexts[1]):
                connectors.Connectors(nova.conf.CONF)
                self.assertEqual([expected] * 2, [context.client_mode for context in contexts])
