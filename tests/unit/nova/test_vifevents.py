# SPDX-License-Identifier: Apache-2.0
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import nova.conf
import testtools
from nova import exception
from nova.network import model
from oslo_config import fixture as config_fixture

from nova_lxd_ext.network.vifevents import VifEvents
from tests.unit.nova import ports, records
from tests.unit.nova.ports import FIRST

DOWN = model.NetworkInfo([ports.vif(active=False)])


class Neutron:
    """Nova's side: what arrives at the end of the wait."""

    def __init__(self, answer: Callable[[Any], None] = lambda failed: None) -> None:
        self._answer = answer
        self.asked: list[Any] = []

    @contextlib.contextmanager
    def wait_for_instance_event(self, instance: Any, events: Any, timeout: int, error_callback: Any) -> Iterator[None]:
        self.asked.append((events, timeout))
        yield
        self.asked.append("waited")
        self._answer(error_callback)


def times_out(failed: Any) -> None:
    raise exception.InstanceEventTimeout()


def fails(failed: Any) -> None:
    failed(f"network-vif-plugged-{FIRST}", records.instance())


class VifEventsTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.options = self.useFixture(config_fixture.Config(nova.conf.CONF))
        self.options.config(vif_plugging_timeout=7, vif_plugging_is_fatal=True)

    def expect(self, neutron: Any, vifs: model.NetworkInfo = DOWN) -> list[str]:
        done = []
        with VifEvents(nova.conf.CONF, neutron).expecting(records.instance(), vifs):
            done.append("plugged")
        return done

    def test_a_port_that_is_down_is_waited_for_after_the_plugging(self) -> None:
        neutron = Neutron()
        self.assertEqual(["plugged"], self.expect(neutron))
        self.assertEqual([([("network-vif-plugged", FIRST)], 7), "waited"], neutron.asked)

    def test_nothing_to_wait_for(self) -> None:
        self.assertEqual(["plugged"], self.expect(None, model.NetworkInfo([ports.vif()])))
        self.options.config(vif_plugging_timeout=0)
        self.assertEqual(["plugged"], self.expect(None))

    def test_neutron_does_not_answer_or_fails(self) -> None:
        for answer, words in ((times_out, f"{FIRST} within 7 s"), (fails, "Neutron reported a failure")):
            with self.subTest(words):
                error = self.assertRaises(exception.VirtualInterfaceCreateException, self.expect, Neutron(answer))
                self.assertIn(words, str(error))

    def test_the_operator_lets_servers_start_all_the_same(self) -> None:
        self.options.config(vif_plugging_is_fatal=False)
        for answer in (times_out, fails):
            self.assertEqual(["plugged"], self.expect(Neutron(answer)))

    def test_an_error_of_the_plugging_is_not_waited_out(self) -> None:
        def plug() -> None:
            with VifEvents(nova.conf.CONF, neutron).expecting(records.instance(), DOWN):
                raise ValueError("no switch")
        neutron = Neutron()
        self.assertRaises(ValueError, plug)
        self.assertNotIn("waited", neutron.asked)
