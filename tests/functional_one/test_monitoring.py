# SPDX-License-Identifier: Apache-2.0
"""Monitoring of a node from its start to its stop, as the front-end does both, with a front-end that listens."""

import base64
import re
from pathlib import Path

from lxml import etree

from onedriver.monitor import Type
from tests.functional_one.front_end import FrontEnd
from tests.functional_one.test_actions import POWEROFF, ActionsCase
from tests.functional_one.vms import Machine
from tests.waiting import await_that

UDP = {Type.SYSTEM_HOST, Type.MONITOR_HOST, Type.BEACON_HOST, Type.MONITOR_VM}


class MonitoringTest(ActionsCase):
    def setUp(self) -> None:
        super().setUp()
        self.front_end = self.useFixture(FrontEnd())
        self.addCleanup(self.node.stop_monitoring)

    def clients(self) -> list[str]:
        """Processes that monitor this node."""
        found = []
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = file.read_bytes().split(b"\0")
            except OSError:  # it ended meanwhile
                continue
            if b"onedriver.node.monitorclient" in words and f"{self.node.remotes}/im".encode() in words:
                found.append(file.parent.name)
        return found

    def client(self) -> str:
        """The only one; for a moment a probe that it starts still looks as it does."""
        await_that(lambda: len(self.clients()) == 1, "there is one client")
        return min(self.clients(), key=int)

    def started(self) -> dict[str, str]:
        """The answer to the start."""
        result = self.node.start_monitoring(self.front_end.configuration())
        self.assertEqual((0, ""), (result.status, result.err))
        answer = etree.fromstring(result.out)
        self.assertEqual("MONITOR_MESSAGES", answer.tag)
        self.assertTrue(answer.findtext("TIMESTAMP").isdigit())
        return {part.tag: base64.b64decode(part.text or "").decode() for part in answer if part.tag != "TIMESTAMP"}

    def monitored(self) -> str:
        """Return the last metrics of the VM."""
        found = [re.search('ID="1".*MONITOR="(.*)"', text) for text in self.front_end.texts(Type.MONITOR_VM)]
        return base64.b64decode(found[-1][1]).decode() if found and found[-1] else ""

    def test_from_start_to_stop(self) -> None:
        machine = self.deployed(Machine(devices=(self.gpus[0],)))
        answer = self.started()
        self.assertEqual({"SYSTEM_HOST", "MONITOR_HOST", "STATE_VM", "MONITOR_VM"}, set(answer))
        self.assertIn('HYPERVISOR="lxdone"\n', answer["SYSTEM_HOST"])
        self.assertIn('SYNC_STATE="yes"\n', answer["STATE_VM"])
        self.assertIn('VM=[ ID="1", DEPLOY_ID="one-1", STATE="RUNNING" ]', answer["STATE_VM"])
        first = self.client()

        await_that(lambda: 'CPU="' in self.monitored(), "the VM's CPU is told from the second round on")
        self.assertIn('GPU_COUNT="1"\n', self.monitored())
        self.assertRegex(self.monitored(), 'MEMORY="[1-9]')
        await_that(lambda: all(self.front_end.texts(kind) for kind in (*UDP, Type.STATE_VM)), "every message came")
        self.assertEqual({(Type.STATE_VM, "tcp")} | {(kind, "udp") for kind in UDP},
                         {(message.type, way) for way, message in self.front_end.messages})
        self.assertEqual({3}, {message.host for _, message in self.front_end.messages})

        self.ok("cancel", machine, lcm=POWEROFF)
        await_that(lambda: 'STATE="POWEROFF"' in self.front_end.texts(Type.STATE_VM)[-1], "the VM's end was told")

        self.started()
        self.assertNotEqual(first, self.client())
        for _ in range(2):
            self.assertEqual((0, "", ""), self.node.stop_monitoring())
            self.assertEqual([], self.clients())

    def test_strangers_are_reported(self) -> None:
        self.deployed()
        config = self.engine.client.instance("one-1")[0]
        labels = {key: value for key, value in config["config"].items() if not key.startswith("user.")}
        self.engine.client.replace_instance("one-1", config | {"config": labels}, "")
        try:
            self.assertIn('TOTAL_WILDS="1"\nWILDS="one-1"\n', self.node.probe("host/system").out)
            for name in ("vm/status", "vm/monitor"):
                self.assertNotIn("one-1", self.node.probe(name).out)
        finally:
            self.engine.client.replace_instance("one-1", config, "")

    def test_a_probe_of_vms_that_fails_only_warns(self) -> None:
        probe = self.node.remotes / "im/lxdone-probes.d/vm/monitor/more"
        probe.write_text("#!/bin/sh\necho not well >&2\nexit 1\n")
        probe.chmod(0o755)
        self.assertEqual({"SYSTEM_HOST", "MONITOR_HOST", "STATE_VM"}, set(self.started()))
        await_that(lambda: self.front_end.texts(Type.MONITOR_VM, success=False), "the failure was told")
        self.assertEqual("more failed: not well", self.front_end.texts(Type.MONITOR_VM, success=False)[0])
        probe.unlink()
        # Data after a failure is reported too: the rounds continue.
        count = len(self.front_end.texts(Type.BEACON_HOST))
        await_that(lambda: len(self.front_end.texts(Type.BEACON_HOST)) > count, "the rounds go on")

    def test_a_host_that_cannot_be_measured_is_not_monitored(self) -> None:
        automatic = self.front_end.configuration("auto")
        for spoilt, words in ((automatic, "SSH_CLIENT"), ("<MONITOR_CONFIG", "complete XML")):
            result = self.node.start_monitoring(spoilt)
            self.assertNotEqual(0, result.status)
            self.assertIn(words, result.reason)
        self.node._conf.write_text('endpoint = "/nonexistent/unix.socket"\n')
        result = self.node.start_monitoring(self.front_end.configuration())
        self.assertIn("/nonexistent/unix.socket", result.reason)
        self.assertEqual(([], []), (self.clients(), self.front_end.messages))
        self.node.configure()
