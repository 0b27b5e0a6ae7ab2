# SPDX-License-Identifier: Apache-2.0
import threading
import time

import testtools
from nova import exception
from nova.compute import power_state

from containerhost import errors
from containerhost.engines.contract import ContainerState, Status
from containerhost.engines.spec import ContainerSpec, Cpu, Memory, RootDisk
from nova_lxd_ext.instance.states import POWER_STATES, SNAPSHOT_AGE, States
from tests.unit.nova import records
from tests.unit.nova.fakes import Clock, FakeEngine


def container(name: str, labels: dict[str, str]) -> ContainerSpec:
    return ContainerSpec(name, "image", Cpu(1), Memory(1), RootDisk("pool"), labels=labels)


class StatesTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.server = records.instance()
        self.engine = FakeEngine()
        self.engine.create(container(self.server.name, {"nova.uuid": records.UUID}))
        self.engine.create(container("somebodys", {}))
        self.engine.asked.clear()
        self.clock = Clock()
        self.states = States(self.engine, self.clock)

    def test_only_novas_containers_are_listed_from_one_request(self) -> None:
        self.assertEqual([self.server.name], [state.name for state in self.states.all()])
        self.assertEqual([records.UUID], self.states.uuids())
        self.assertEqual(["containers"] * 2, self.engine.asked)

    def test_engine_that_fails_keeps_no_boot_from_its_end(self) -> None:
        """Nova reads the state after the boot, and would place the server nowhere."""
        self.engine.fail = {"container": errors.EngineUnavailable("it restarts")}
        self.assertEqual(power_state.NOSTATE, self.states.power(self.server).state)
        self.engine.fail = {}
        self.assertEqual(power_state.SHUTDOWN, self.states.power(self.server).state)

    def test_a_thousand_cached_questions_cost_one_request(self) -> None:
        for _ in range(1000):
            self.states.info(self.server, use_cache=True)
        self.assertEqual(["containers"], self.engine.asked)

    def test_threads_that_ask_at_once_share_the_request(self) -> None:
        slow = FakeEngine()
        slow.specs, slow.statuses = self.engine.specs, self.engine.statuses
        quick = slow.containers

        def containers() -> tuple[ContainerState, ...]:
            time.sleep(0.05)
            return quick()
        slow.containers = containers
        states = States(slow, self.clock)
        threads = [threading.Thread(target=states.info, args=(self.server, True)) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(["containers"], slow.asked)

    def test_a_snapshot_grows_old(self) -> None:
        self.states.info(self.server, use_cache=True)
        self.engine.statuses[self.server.name] = Status.RUNNING
        self.assertEqual(power_state.SHUTDOWN, self.states.info(self.server, use_cache=True).state)
        self.clock.now += SNAPSHOT_AGE
        self.assertEqual(power_state.RUNNING, self.states.info(self.server, use_cache=True).state)

    def test_a_change_of_ours_ends_the_snapshot(self) -> None:
        self.states.info(self.server, use_cache=True)
        self.engine.statuses[self.server.name] = Status.RUNNING
        self.states.changed()
        self.assertEqual(power_state.RUNNING, self.states.info(self.server, use_cache=True).state)

    def test_without_the_cache_the_engine_is_asked(self) -> None:
        self.states.info(self.server, use_cache=True)
        self.engine.statuses[self.server.name] = Status.FROZEN
        self.assertEqual(power_state.PAUSED, self.states.info(self.server).state)

    def test_what_is_not_the_servers_is_not_found(self) -> None:
        table = [("no container", records.instance(id=7)), ("another's", records.instance(uuid=records.IMAGE))]
        for name, server in table:
            for use_cache in (True, False):
                with self.subTest(name=name, use_cache=use_cache):
                    self.assertIsNone(self.states.find(server, use_cache))
                    self.assertRaises(exception.InstanceNotFound, self.states.info, server, use_cache)
        self.assertEqual([False, True], [self.states.is_foreign(server) for _, server in table])

    def test_every_status_is_a_power_state(self) -> None:
        self.assertEqual(set(Status), set(POWER_STATES))
