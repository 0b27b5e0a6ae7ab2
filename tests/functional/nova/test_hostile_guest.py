# SPDX-License-Identifier: Apache-2.0
"""A tenant who puts things in the way of nova-compute: nothing waits for it, and its server goes when it is deleted."""

from tests.functional.nova.test_live_resize import LiveServers  # isort: skip (decides how nova runs)

from typing import Any

import fixtures
from nova.tests.functional.api import client as api_client

from tests import levels
from tests.waiting import await_that

IN_THE_WAY = {
    "FIFO": "mkdir -p /run/containerhost; cd /run/containerhost; rm -f *; mkfifo ack.json resources.json",
    "link": "rm -rf /run/containerhost; ln -s {outside} /run/containerhost",
    "FIFO for a directory": "rm -rf /run/containerhost; mkfifo /run/containerhost",
    "large file": "rm -rf /run/containerhost; mkdir /run/containerhost; cd /run/containerhost; "
                  "dd if=/dev/zero of=ack.json bs=1M count=4; mkdir resources.json",
}
ENDLESS = "#!/bin/sh\nwhile :; do echo y; done"
PATIENCE = 3  # s that nova-compute gives a guest's program
HANGS = "#!/bin/sh\ntrap '' TERM; while :; do sleep 1; done"


class HostileGuestTest(LiveServers):
    def setUp(self) -> None:
        super().setUp()
        self.outside = self.state / "outside"
        self.outside.mkdir()
        (self.outside / "ack.json").write_text("the host's")

    def assert_host_untouched(self) -> None:
        self.assertEqual([("ack.json", "the host's")],
                         [(path.name, path.read_text()) for path in self.outside.iterdir()])

    def replaced(self, server: Any, program: str, script: str) -> None:
        self.execute(server, f'printf %s "$0" > {program}.new; chmod 755 {program}.new; mv {program}.new {program}',
                     script)

    @levels.exhaustive("a program and a console without an end remain; units put everything in the way")
    def test_things_in_place_of_shared_files_do_not_keep_a_server_or_its_devices(self) -> None:
        smaller = self.flavor(vcpu=2, memory_mb=192, disk=2)
        things = list(IN_THE_WAY.items())
        for what, script in levels.budget(gate=[levels.turn(things)], exhaustive=things):
            with self.subTest(what):
                server = self.counting(self.equipped)
                self.execute(server, script.format(outside=self.outside))
                self.resize(server, smaller)
                self.assertEqual(((0, 0), {}), (self.accelerators(server), self.held()))
                self.assert_went_on(server)
                self._confirm_resize(server)
                self.resize(server, self.equipped)
                self.assertEqual((1, 1), self.accelerators(server))
                self.delete(server)
                self.assertEqual({}, self.held())
                self.assert_host_untouched()
                self._run_periodics()  # nova counts what a deleted server had a moment after it is gone

    def test_programs_that_never_end_do_not_keep_a_server(self) -> None:
        self.useFixture(fixtures.MonkeyPatch("nova_lxd_ext.access.password.TIMEOUT", PATIENCE))
        scripts = (HANGS, ENDLESS)
        for script in levels.budget(gate=(levels.turn(scripts),), exhaustive=scripts):
            with self.subTest(script):
                server = self.counting(self.equipped)
                self.replaced(server, "/usr/sbin/chpasswd", script)
                error = self.assertRaises(api_client.OpenStackApiException, self.api.post_server_action, server["id"],
                                          {"changePassword": {"adminPass": "secret"}})
                self.assertNotIn("secret", str(error.response.json()))
                self.delete(server)
                self.assertEqual({}, self.held())
                self._run_periodics()  # likewise

    def test_endless_console_does_not_fill_the_host(self) -> None:
        server = self.counting(self.equipped)
        self.execute(server, "setsid sh -c 'while :; do echo y; done > /dev/console' > /dev/null 2>&1 < /dev/null &")
        await_that(lambda: self.api.post_server_action(server["id"], {"os-getConsoleOutput": {}})["output"],
                   "there is output")
        self.delete(server)
        self.assertEqual({}, self.held())
