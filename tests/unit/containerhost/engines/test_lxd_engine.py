# SPDX-License-Identifier: Apache-2.0
import os
from typing import Any
from unittest import mock

import fixtures
import testtools

from containerhost import errors
from containerhost.devices.grants import Grant
from containerhost.engines.lxd import config, operations
from containerhost.engines.lxd.client import LxdClient, VersionedInstance
from containerhost.engines.lxd.engine import LxdEngine
from containerhost.engines.spec import ContainerSpec, Cpu, Memory, RootDisk
from containerhost.engines.verify import InterfaceMissing


class Client(LxdClient):
    """LXD, which says what a container's first process is."""

    def __init__(self, *pids: int) -> None:
        super().__init__()
        self.pids = list(pids)
        self.asked = 0

    def state(self, name: str) -> dict[str, Any]:
        self.asked += 1
        return {"status_code": 103, "pid": self.pids[0] if len(self.pids) == 1 else self.pids.pop(0)}


class UpdateDevicesTest(testtools.TestCase):
    def test_container_of_an_older_release_gets_a_limit_of_processes_and_no_io_uring(self) -> None:
        for before, after in ((None, "16384"), ("200", "200")):
            config = {"limits.cpu": "1"} | ({"limits.processes": before} if before else {})
            client = mock.Mock(extensions=frozenset())
            client.settings.operation_timeout = 1
            client.instance.return_value = VersionedInstance({"config": config, "devices": {}}, "etag")
            LxdEngine(client).update_devices("c1", ())
            changed = [call.args[1]["config"] for call in client.replace_instance.call_args_list] or [config]
            self.assertEqual([{"limits.cpu": "1", "limits.processes": after,
                               "security.syscalls.deny": "io_uring_setup errno 38"}], changed)

    def test_container_of_an_older_release_gets_limits_of_control_groups(self) -> None:
        for before, after in (({}, config.GROUPS), ({"raw.lxc": "x"}, "x")):
            client = mock.Mock(extensions=frozenset({config.CGROUP2}))
            client.settings.operation_timeout = 1
            client.instance.return_value = VersionedInstance({"config": before, "devices": {}}, "etag")
            LxdEngine(client).update_devices("c1", ())
            self.assertEqual(after, client.replace_instance.call_args.args[1]["config"]["raw.lxc"])


class ChangeTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.useFixture(fixtures.MockPatch("containerhost.engines.lxd.engine.BUSY_INTERVAL", 0.0))
        self.client = mock.Mock(extensions=frozenset())
        self.client.instance.return_value = VersionedInstance({"config": {}, "devices": {}}, "etag")

    def tries(self, *answers: Exception | None) -> int:
        self.client.replace_instance.side_effect = answers
        LxdEngine(self.client).relabel("c1", {"key": "value"})
        return int(self.client.replace_instance.call_count)

    def test_guest_that_changes_itself_again_and_again_hinders_none(self) -> None:
        self.assertEqual(31, self.tries(*[errors.EngineChanged("etag")] * 30, None))

    def test_other_conflicts_are_told_soon(self) -> None:
        self.assertRaises(errors.EngineConflict, self.tries, *[errors.EngineConflict("it runs")] * 30)
        self.assertEqual(5, self.client.replace_instance.call_count)


class DisksTest(testtools.TestCase):
    def use(self, client: mock.Mock) -> object:
        client.instance.return_value = VersionedInstance({"expanded_devices": {"root": {"pool": "p"}}}, "etag")
        return LxdEngine(client).disks("c1")

    def test_containers_state_is_not_asked_for(self) -> None:
        client = mock.Mock(extensions=frozenset({"storage_volume_state"}))
        client.volume_use.return_value = 7
        self.assertEqual({"root": 7}, self.use(client))
        client.volume_use.assert_called_once_with("p", "c1")
        client.state.assert_not_called()

    def test_pool_without_quotas_does_not_tell(self) -> None:
        client = mock.Mock(extensions=frozenset({"storage_volume_state"}))
        client.volume_use.return_value = 0
        self.assertEqual({}, self.use(client))
        client.volume_use.side_effect = errors.EngineError("read the use of c1: Not supported")
        self.assertEqual({}, self.use(client))
        client.volume_use.side_effect = errors.EngineTimeout("no answer")
        self.assertRaises(errors.EngineTimeout, self.use, client)

    def test_daemon_without_states_of_volumes(self) -> None:
        client = mock.Mock(extensions=frozenset())
        client.state.return_value = {"status_code": 103, "disk": {"root": {"usage": 8}}}
        self.assertEqual({"root": 8}, self.use(client))


class SetLimitsTest(testtools.TestCase):
    def test_former_limits_are_restored_where_the_daemon_applies_a_part(self) -> None:
        """LXD keeps in its database what the kernel refused, as memory that is in use."""
        former = {"config": {"limits.memory": "64"}, "devices": {"root": {"path": "/"}}}
        client, written = mock.Mock(extensions=frozenset()), [former]
        client.instance.side_effect = lambda name: VersionedInstance(written[-1], "etag")

        def replace(name: str, instance: dict[str, Any], etag: str) -> None:
            written.append(instance)
            if len(written) == 2:
                raise errors.EngineError("Failed to set cgroup memory.max")

        client.replace_instance.side_effect = replace
        self.assertRaises(errors.EngineError, LxdEngine(client).set_limits, "c1", ContainerSpec(
            "c1", "image", Cpu(1), Memory(32), RootDisk("pool")))
        self.assertEqual((3, former), (len(written), written[-1]))


class StartTest(testtools.TestCase):
    def test_names_of_host_ends_are_free_before_the_daemon_makes_them(self) -> None:
        client, root = mock.Mock(extensions=frozenset()), mock.Mock()
        nic = {"type": "nic", "nictype": "bridged", "host_name": "one-43-0"}
        client.instance.return_value = VersionedInstance({"config": {}, "devices": {"root": {}, "nic": nic}}, "etag")
        engine = LxdEngine(client, root)
        with mock.patch.object(engine, "_act", side_effect=lambda *words: root.start()):
            engine.start("c1")
        self.assertEqual([mock.call.free_name("one-43-0"), mock.call.start()], root.mock_calls)


class DetachTest(testtools.TestCase):
    """LXD is detaching the device for a caller that was killed."""

    def detached(self, *devices: dict[str, Any]) -> list[str]:
        """Detach a device of which the interface is neither in the container nor on the host.

        :param devices: of the container, each time that they are read
        :returns: what LXD was asked
        """
        client = mock.Mock(extensions=frozenset())
        client.operations.return_value = [{"status_code": 103, "description": "Updating instance"}]
        client.instance.side_effect = [VersionedInstance({"config": {}, "devices": found}, "etag") for found in devices]
        engine = LxdEngine(client)
        with mock.patch.object(engine.stale_devices, "clear"), \
                mock.patch.object(operations, "changes", return_value=True), \
                mock.patch.object(config, "devices_of", return_value={"vf": {}}), \
                mock.patch.object(config, "devices_of_all", return_value={}), \
                mock.patch.object(engine, "_require_interfaces", side_effect=InterfaceMissing("no interface ib1")):
            engine.detach("c1", mock.Mock(spec=Grant, gpu=None))
        return [call[0] for call in client.mock_calls]

    def test_interface_on_its_way_out_is_awaited(self) -> None:
        self.assertEqual(["instance", "operations", "wait", "instance", "instance"], self.detached(
            {"vf": {}}, {}, {}))

    def test_interface_that_a_guest_renamed_is_refused(self) -> None:
        self.assertRaises(InterfaceMissing, self.detached, {"vf": {}}, {"vf": {}})


class FirstProcess(testtools.TestCase):
    def engine(self, client: Client) -> LxdEngine:
        return LxdEngine(client)

    def test_running_process_is_asked_for_once(self) -> None:
        client = Client(os.getpid())
        engine = self.engine(client)
        self.assertEqual([os.getpid()] * 3, [engine.pid("c1") for _ in range(3)])
        self.assertEqual(1, client.asked)

    def test_stopped_container_has_none(self) -> None:
        self.assertIsNone(self.engine(Client(-1)).pid("c1"))

    def test_daemon_is_not_asked_where_the_control_groups_tell(self) -> None:
        for is_hook, asked in ((False, 0), (True, 1)):
            client = Client(os.getppid())
            with (mock.patch("containerhost.engines.lxd.engine.usage.first_process", return_value=os.getpid()),
                  mock.patch("containerhost.engines.lxd.engine.is_hosts", return_value=is_hook)):
                found = self.engine(client).pid("c1")
            self.assertEqual((os.getppid() if is_hook else os.getpid(), asked), (found, client.asked))
