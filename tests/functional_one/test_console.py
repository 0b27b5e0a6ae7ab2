# SPDX-License-Identifier: Apache-2.0
"""Consoles over VNC: from GRAPHICS of a template to a command that is typed in a viewer and done in the container."""

import os
import signal
import socket
import subprocess
from pathlib import Path

from containerhost.engines.contract import Status
from onedriver.node import consoles, single_instance
from tests import levels
from tests.functional_one.test_actions import CLEANUP, POWEROFF, RESTORE, RESUME, SUSPEND, ActionsCase
from tests.functional_one.vms import Machine
from tests.rfbclient import Refused, Viewer

PORT = 5901
NOBODY = 65534


def graphics(**attributes: object) -> str:
    values = {"TYPE": "VNC", "LISTEN": "127.0.0.1", "PORT": PORT, "PASSWD": "secret"} | attributes
    return f"<GRAPHICS>{''.join(f'<{key}>{value}</{key}>' for key, value in values.items())}</GRAPHICS>"


class ConsoleCase(ActionsCase):
    def setUp(self) -> None:
        super().setUp()
        self.addCleanup(lambda: self.assertEqual([], self.names()))

    def names(self) -> list[str]:
        return sorted(name for name in single_instance.names() if name.startswith("one-console"))

    def screened(self, number: int = 1) -> Machine:
        return self.deployed(Machine(number, more=graphics(PORT=PORT + number - 1)))

    def shell(self, machine: Machine) -> None:
        """Let a shell read the container's console, as a getty would."""
        process = subprocess.Popen(
            ["nsenter", "--target", str(self.pid(machine)), "--all", "setsid", "sh", "-c",
             "exec sh < /dev/console > /dev/console 2>&1"], env={"PATH": "/bin:/usr/bin"})
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)

    def viewer(self, port: int = PORT, password: str | None = "secret") -> Viewer:
        viewer = Viewer.at(port, password)
        self.addCleanup(viewer.close)
        return viewer

    def type(self, viewer: Viewer, machine: Machine, file: str) -> None:
        """A command, whose effect is waited for. What is typed while LXD still attaches is lost."""
        def done() -> bool:
            viewer.type(f"\necho typed > /root/{file}\n")
            return self.inside(machine, "cat", f"/root/{file}") == "typed\n"

        self.wait_for(done)

    def is_open(self, port: int = PORT) -> bool:
        try:
            self.viewer(port).close()
        except ConnectionRefusedError:
            return False
        return True


@levels.exhaustive("one that lives as its VM does stays", tests=("test_one_that_died_is_brought_back_by_monitoring",))
class ConsoleTest(ConsoleCase):
    def test_a_command_is_typed_and_done(self) -> None:
        machine = self.screened()
        self.shell(machine)
        self.inside(machine, "sh", "-c", "echo ====== > /dev/console")
        self.assertEqual("the password is wrong", str(self.assertRaises(Refused, self.viewer, PORT, "wrong")))
        viewer = self.viewer()
        self.assertEqual("one-1", viewer.name)
        viewer.ask(changes_only=False)
        viewer.update()
        # Earlier output is on the screen.
        for _ in range(100):
            if sum(any(line[:128]) for line in viewer.framebuffer) > 16:
                break
            viewer.ask()
            viewer.update()
        self.type(viewer, machine, "first")
        later = self.viewer()
        self.assertTrue(viewer.hung_up())
        self.type(later, machine, "second")
        talking = [process for process in Path("/proc").glob("[0-9]*/status")
                   if "lxdone.console_client" in (process.parent / "cmdline").read_text()
                   and f"Uid:\t{NOBODY}" in process.read_text()]
        self.assertEqual(1, len(talking))

    def test_it_lives_as_its_vm_does(self) -> None:
        machine = self.screened()
        self.assertTrue(self.is_open())
        self.ok("save", machine, lcm=SUSPEND)
        self.assertFalse(self.is_open())
        self.ok("restore", machine, lcm=RESTORE)
        self.assertTrue(self.is_open())
        self.ok("reset", machine)
        self.shell(machine)
        viewer = self.viewer()
        self.type(viewer, machine, "file")
        self.ok("cancel", machine, lcm=POWEROFF)
        self.assertTrue(viewer.hung_up())
        self.wait_for(lambda: not self.is_open())
        self.ok("deploy", machine, lcm=RESUME)
        self.assertTrue(self.is_open())
        changed = machine.changed(more=graphics(PASSWD="another"))
        self.ok("reconfigure", changed, "hda", "/path")
        self.assertRaises(Refused, self.viewer)
        self.viewer(password="another")
        self.ok("cancel", machine, lcm=CLEANUP)
        self.assertEqual(([], False), (self.names(), self.is_open()))

    def test_one_that_died_is_brought_back_by_monitoring(self) -> None:
        machine = self.screened()
        (server,) = [int(process.name) for process in Path("/proc").glob("[0-9]*")
                     if "onedriver.node.vnc.server" in (process / "cmdline").read_text()]
        os.kill(server, signal.SIGKILL)
        self.wait_for(lambda: not self.names())
        self.assertFalse(self.is_open())
        os.utime(self.node.state / "one-1" / consoles.FILE, (0, 0))
        self.assertEqual(0, self.node.probe("vm/status").status)
        self.wait_for(self.is_open)
        # So is that of a container which the guest restarts: it has another first process.
        before = self.pid(machine)
        os.utime(self.node.state / "one-1" / consoles.FILE, (0, 0))
        self.inside(machine, "reboot", "-f")
        self.wait_for(lambda: self.pid(machine) not in (before, 0))
        self.wait_for(lambda: not self.names())
        self.node.probe("vm/status")
        self.wait_for(self.is_open)

    @levels.exhaustive("kernel/containerhost has what a viewer sends")
    def test_accents_without_an_end_do_not_keep_the_viewer_waiting(self) -> None:
        machine = self.screened()
        self.shell(machine)
        self.inside(machine, "sh", "-c", "x=$(printf '\\314\\201%.0s' $(seq 4000)); "
                                         "for i in $(seq 30); do printf \"$x\"; done > /dev/console")
        self.type(self.viewer(), machine, "file")

    @levels.exhaustive("the walk of FuzzTest has two consoles")
    def test_two_vms(self) -> None:
        machines = [self.screened(number) for number in (1, 2)]
        for machine in machines:
            self.shell(machine)
        for place, machine in enumerate(machines):
            self.type(self.viewer(PORT + place), machine, f"file{place}")
            self.assertEqual("", self.inside(machines[1 - place], "sh", "-c", f"cat /root/file{place} 2> /dev/null"
                                             ) if not place else "")

    @levels.exhaustive("kernel/containerhost has what a viewer sends")
    def test_a_console_that_cannot_be_had_is_told_and_the_vm_runs(self) -> None:
        machine = Machine(more=graphics())
        self.node.give_disk(machine)
        with socket.create_server(("127.0.0.1", PORT)):
            result = self.node.act("deploy", machine, lcm=2)
        self.addCleanup(self.ok, "cancel", machine, lcm=CLEANUP)
        self.assertEqual((0, ""), (result.status, result.reason))
        self.assertIn(f"WARN: one-1 has no console at port {PORT} of 127.0.0.1", result.err)
        self.assertNotIn("secret", result.err)
        self.assertEqual(Status.RUNNING, self.status(machine))
        self.ok("reconfigure", machine, "hda", "/path")
        self.assertTrue(self.is_open())

    @levels.exhaustive("tests/unit has how GRAPHICS is read")
    def test_screens_that_cannot_be(self) -> None:
        for words, more in (("PORT is '22'", graphics(PORT=22)), ("TYPE is 'RDP'", graphics(TYPE="RDP")),
                            ("LISTEN is 'x'", graphics(LISTEN="x"))):
            machine = Machine(more=more)
            self.node.give_disk(machine)
            self.refused(words, "deploy", machine, lcm=2)
            self.ok("cancel", machine, lcm=CLEANUP)
        self.deployed(Machine(more=graphics(TYPE="SPICE")))
        self.assertFalse(self.is_open())
