# SPDX-License-Identifier: Apache-2.0
import errno
import json
import os
import re
import shutil
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import fixtures
import testtools
from click.testing import CliRunner

from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.repair import DeviceRepair
from containerhost.allocation.states import State
from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.errors import AllocationsUnreadable, ScrubFailed
from containerhost.inventory.scan import HostView, scan
from containerhost.linux.idlist import id_text
from containerhost.linux.sysfs import Host
from containerhost.operator.cli import main
from containerhost.operator.reports import report
from containerhost.privileged import Privileged
from tests.unit.containerhost.hosts import Broken, shared

TIMEOUT = 30  # s
OWNER = Consumer("nova", "lxd", "instance-00000001", "11111111-1111-4111-8111-111111111111")


def run(*arguments: str):
    return CliRunner().invoke(main, arguments)


class List(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.tree = self.useFixture(Broken("mixed"))
        self.root = str(self.tree.root)
        self.store = AllocationStore(self.tree.root / "var/lib/containerhost/owners")

    def claim(self, name: str) -> None:
        inventory = scan(self.tree.host)
        self.store.claim([inventory.get(name)], OWNER, inventory.related)

    def test_json_says_everything(self):
        self.claim("0000:5e:00.1")
        result = run("list", "--json", "--root", self.root)
        self.assertEqual(0, result.exit_code, result.output)
        devices = {device["id"]: device for device in json.loads(result.output)}
        self.assertEqual(22, len(devices))
        self.assertEqual(
            {"id", "address", "kind", "vendor_id", "product_id", "class_code", "plugin", "role", "driver", "numa_node",
             "model", "uuid", "parent", "vf_index", "total_vfs", "netdev", "other_netdevs", "netdev_away", "link_layer",
             "mac", "rdma", "slice", "memory", "nodes", "health", "outside", "taint", "notes", "host_use", "state",
             "owner", "since", "blocked", "remedy"}, set(devices["0000:5e:00.1"]))
        self.assertEqual("instance-00000001", devices["0000:5e:00.1"]["owner"]["container"])
        self.assertIsNone(devices["0000:5e:00.2"]["owner"])
        self.assertEqual(result.output, run("list", "--json", "--root", self.root).output)

    def test_the_table_is_aligned_and_complete(self):
        self.claim("0000:3b:00.0")
        self.store.block("0000:3b:00.0", "not clean")
        lines = run("list", "--root", self.root).output.splitlines()
        header, gpu = lines[0], next(line for line in lines if line.startswith("0000:3b:00.0"))
        for column, value in (("KIND", "gpu"), ("PCI ID", "10de:20b0"), ("CLASS", "030200"), ("DRIVER", "nvidia"),
                              ("NUMA", "0"), ("NODES", "nvidia0=195:0 dri/card0=226:0"), ("HEALTH", "ok"),
                              ("STATE", "BLOCKED  "), ("OWNER", "lxd/instance-00000001"),
                              ("SINCE", self.since("0000:3b:00.0")), ("BLOCKED  ", "not clean  ")):
            self.assertTrue(gpu[header.index(column):].startswith(value), (column, gpu))
        self.assertIn("infiniband/rdma_cm=10:58 kfd=510:0", lines[-2])
        self.assertEqual("22 devices, 0 of them not healthy", lines[-1])

    def since(self, name: str) -> str:
        return str(self.store.records()[name].since)

    def shown(self, name: str) -> dict[str, Any]:
        devices = json.loads(run("list", "--json", "--root", self.root).stdout)
        return next(device for device in devices if device["id"] == name)

    def test_the_short_table_fits_a_terminal(self):
        self.claim("0000:5e:00.1")
        shown = run("list", "--short", "--root", self.root).output
        self.assertEqual(["DEVICE", "KIND", "MODEL", "NUMA", "NETDEV", "HEALTH", "STATE", "OWNER"],
                         shown.splitlines()[0].split())
        self.assertIn("instance-00000001", next(line for line in shown.splitlines() if line.startswith("0000:5e:00.1")))
        self.assertNotIn("nvidia0=", shown)

    def test_every_state_is_shown_with_its_time(self):
        name = "0000:3b:00.0"
        steps = ((State.FREE, lambda: None), (State.CLAIMED, lambda: self.claim(name)),
                 (State.PREPARED, lambda: self.store.prepare(name, OWNER, {})),
                 (State.ATTACHED, lambda: self.store.attach([name], OWNER)),
                 (State.CLEANING, lambda: self.store.begin_cleaning(name)),
                 (State.BLOCKED, lambda: self.store.block(name, "not clean")),
                 (State.CLEANING, lambda: self.store.begin_cleaning(name)))
        for hour, (state, step) in enumerate(steps):
            time = f"2026-11-24T{hour:02}:00:00+00:00"
            with mock.patch("containerhost.allocation.store.now", return_value=time):
                step()
            shown = self.shown(name)
            self.assertEqual((state, None if state is State.FREE else time), (shown["state"], shown["since"]))
            lines = run("list", "--root", self.root).stdout.splitlines()
            gpu = next(line for line in lines if line.startswith(name))
            self.assertTrue(gpu[lines[0].index("STATE"):].startswith(state.upper()), gpu)
            self.assertEqual(state is State.BLOCKED, "containerhost scrub" in gpu)
            self.assertEqual(state is State.BLOCKED, shown["remedy"] is not None)

    def test_state_written_again_keeps_its_time(self):
        self.claim("0000:5e:00.1")
        self.store.attach(["0000:5e:00.1"], OWNER)
        before = self.since("0000:5e:00.1")
        with mock.patch("containerhost.allocation.store.now", return_value="later"):
            self.store.attach(["0000:5e:00.1"], OWNER)
            self.store.prepare("0000:5e:00.1", OWNER, {"link": "auto"})
        self.assertEqual(before, self.since("0000:5e:00.1"))

    def test_remedies_of_blocked_device_work(self):
        for name in ("0000:3b:00.0", "0000:5e:00.1"):
            self.claim(name)
            self.store.block(name, "not clean")
            shown = self.shown(name)
            self.assertEqual("not clean", shown["blocked"])
            commands = re.findall(r"`containerhost ([a-z]+) ([^`]+)`", shown["remedy"])
            self.assertEqual([("scrub", name), ("unblock", name)], commands)
            self.assertLessEqual({command for command, _ in commands}, set(main.commands))

    def test_owners_that_cannot_be_read_do_not_hide_the_devices(self):
        """Nor is a device shown as free then."""
        self.claim("0000:3b:00.0")
        next((self.tree.root / "var/lib/containerhost/owners").glob("*.json")).write_text("{")
        result = run("list", "--root", self.root)
        self.assertEqual(0, result.exit_code)
        self.assertIn("owners are not shown", result.stderr)
        self.assertIn("0000:3b:00.0", result.stdout)
        self.assertEqual((0, 22), (result.stdout.count("FREE"), result.stdout.count("UNKNOWN")))
        self.assertIsNone(self.shown("0000:3b:00.0")["state"])

    def test_what_a_card_says_cannot_steer_the_terminal(self):
        (self.tree.function("0000:83:00.0") / "product_name").write_text("evil\x1b[2J\x07\n")
        self.assertIn("evil?[2J?", run("list", "--root", self.root).output)

    def test_a_root_that_is_not_there(self):
        root = self.useFixture(fixtures.TempDir()).path
        self.assertEqual(2, run("list", "--root", f"{root}/absent").exit_code)

    def test_an_empty_root(self):
        self.assertIn("0 devices", run("list", "--root", self.useFixture(Empty()).path).output)


class Empty(Broken):
    def __init__(self) -> None:
        super().__init__("small")

    def _setUp(self) -> None:
        super()._setUp()
        for directory in self.root.iterdir():
            shutil.rmtree(directory)
        self.path = str(self.root)


class Refusals(testtools.TestCase):
    def test_a_file_that_cannot_be_written(self):
        file = f"{self.useFixture(fixtures.TempDir()).path}/absent/host.svg"
        result = run("topology", "--svg", file, "--root", str(shared("mixed").root))
        self.assertEqual(1, result.exit_code)
        self.assertEqual(f"Error: {file} cannot be written: No such file or directory\n", result.output)

    def test_output_through_a_link_and_to_a_device(self):
        directory = Path(self.useFixture(fixtures.TempDir()).path)
        link, pipe = directory / "link", directory / "pipe"
        link.symlink_to(directory / "host.svg")
        os.mkfifo(pipe)
        content: list[bytes] = []
        reader = threading.Thread(target=lambda: content.append(pipe.read_bytes()), daemon=True)
        reader.start()
        for file in (link, link, pipe):
            result = run("topology", "--svg", str(file), "--root", str(shared("small").root))
            self.assertEqual(0, result.exit_code, result.output)
        self.assertEqual((True, True), (link.is_symlink(), pipe.is_fifo()))
        reader.join(TIMEOUT)
        self.assertEqual([(directory / "host.svg").read_bytes()], content)

    def test_a_user_without_the_right(self):
        def refuse(*_):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/var/lib/containerhost")

        self.useFixture(fixtures.MonkeyPatch("containerhost.operator.cli.read_map", refuse))
        result = run("topology", "--text", "--root", str(shared("mixed").root))
        self.assertEqual((1, "Error: Permission denied: main topology needs root\n"), (result.exit_code, result.output))

    def test_a_user_without_the_right_to_lock_a_device(self):
        def refuse(*_):
            raise AllocationsUnreadable("device 0000:3b:00.0 cannot be locked") from PermissionError(errno.EACCES, "no")

        self.useFixture(fixtures.MonkeyPatch("containerhost.operator.cli.read_map", refuse))
        for user, hint in ((1000, ": main topology needs root"), (0, "")):
            self.useFixture(fixtures.MonkeyPatch("os.geteuid", lambda user=user: user))
            result = run("topology", "--text", "--root", str(shared("mixed").root))
            self.assertEqual((1, f"Error: device 0000:3b:00.0 cannot be locked{hint}\n"),
                             (result.exit_code, result.output))


class Owners(testtools.TestCase):
    def test_the_environment_names_the_records(self):
        root, directory = str(shared("mixed").root), Path(self.useFixture(fixtures.TempDir()).path)
        device = scan(Host(Path(root))).devices[0]
        AllocationStore(directory).claim([device], OWNER, lambda _: ())
        self.assertNotIn(OWNER.container, run("list", "--root", root).output)
        self.useFixture(fixtures.EnvironmentVariable("CONTAINERHOST_OWNERS", str(directory)))
        self.assertIn(OWNER.container, run("list", "--root", root).output)


class Doctor(testtools.TestCase):
    def test_a_well_host(self):
        result = run("doctor", "--root", str(shared("mixed").root))
        lines = result.output.splitlines()
        self.assertEqual((0, f"nothing is wrong; {len(lines) - 1} notes"), (result.exit_code, lines[-1]))
        self.assertEqual({"note"}, {line.split()[0] for line in lines[:-1]})

    def test_programs_read_findings_and_pairs(self):
        root = str(shared("mixed").root)
        found = json.loads(run("doctor", "--json", "--root", root).output)
        self.assertIn({"severity": "note", "check": "vfs", "subject": "0000:d8:00.1",
                       "problem": "it could have 8 virtual functions and has none",
                       "remedy": "`containerhost vfs apply FILE` with the line 0000:d8:00.1: 8"}, found["findings"])
        self.assertIn({"gpu": "0000:83:00.0", "function": "0000:d8:00.0", "way": "NODE", "method": None},
                      found["gpudirect"])
        self.assertEqual(1, run("doctor", "--json", "--root", str(shared("broken").root)).exit_code)

    def test_a_broken_host(self):
        result = run("doctor", "--root", str(shared("broken").root))
        self.assertEqual(1, result.exit_code)
        self.assertIn("0000:3c:00.0: fallen off the bus", result.output)
        self.assertIn("0000:5e:00.2: no driver is bound to it", result.output)

    def test_records_that_need_a_look(self):
        tree = self.useFixture(Broken("small"))
        inventory = scan(tree.host)
        name = inventory.devices[0].id
        store = AllocationStore(tree.root / "records")
        store.claim([inventory.devices[0]], OWNER, inventory.related)
        store.attach([name], OWNER)
        (tree.function(name).parents[0] / name).rename(tree.root / "gone")
        tree.path(f"/sys/bus/pci/devices/{name}").unlink()
        arguments = ("doctor", "--root", str(tree.root), "--owners", str(tree.root / "records"))
        output = run(*arguments).output
        self.assertIn(f"{name}: held by {OWNER}, but this host has no such device; put the card back, or delete the "
                      f"container, and if it does not come back, free it: `containerhost unblock {name}`", output)
        DeviceAllocator(store, lambda: HostView(tree.host), Privileged(), host=tree.host).release(OWNER)
        self.assertEqual(State.BLOCKED, store.records()[name].state)  # so it is not free before
        store.block(name, "its memory could not be cleared")
        output = run(*arguments).output
        self.assertIn(f"{name}: blocked: its memory could not be cleared; if it does not come back, or was cleaned "
                      f"elsewhere, free it: `containerhost unblock {name}`", output)
        self.assertNotIn("this host has no such device", output)  # see the remedy
        next((tree.root / "records").glob("*.json")).write_text("{")
        self.assertIn("cannot be trusted", run(*arguments).output)


class Unblock(testtools.TestCase):
    def test_a_blocked_device_is_free_again(self):
        tree = self.useFixture(Broken("small"))
        directory = Path(tree.root) / "records"
        store, inventory = AllocationStore(directory), scan(tree.host)
        name = inventory.devices[0].id
        store.claim([inventory.devices[0]], OWNER, inventory.related)
        self.assertEqual(1, run("unblock", name, "--owners", str(directory)).exit_code)
        self.assertIn(name, store.records())
        store.block(name, "why")
        self.assertEqual(0, run("unblock", name.upper(), "--owners", str(directory)).exit_code)
        self.assertEqual({}, store.records())

    def test_a_device_that_nobody_holds(self):
        result = run("unblock", "0000:3b:00.0", "--owners", str(self.useFixture(Broken("small")).root / "none"))
        self.assertEqual(1, result.exit_code)
        self.assertIn("no container holds device 0000:3b:00.0", result.output)


class Scrub(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.directory = self.useFixture(Broken("small")).root / "records"

    def allocator(self, outcome):
        return mock.patch.object(DeviceRepair, "clean", autospec=True, side_effect=outcome)

    def test_what_was_done_is_told(self):
        with self.allocator([("it was reset",), ("it was reset",)]):
            self.assertEqual("0000:3b:00.0 is clean and free: it was reset\n",
                             run("scrub", "0000:3b:00.0", "--owners", str(self.directory)).output)
            self.assertEqual({"device": "0000:3b:00.0", "done": ["it was reset"], "was_blocked": None}, json.loads(
                run("scrub", "0000:3b:00.0", "--json", "--owners", str(self.directory)).output))

    def test_the_former_reason_is_told(self):
        inventory = scan(shared("small"))
        store = AllocationStore(self.directory)
        store.claim([inventory.get("0000:3b:00.0")], OWNER, inventory.related)
        store.block("0000:3b:00.0", "why")
        with self.allocator([()]):
            done = run("scrub", "0000:3B:00.0", "--json", "--owners", str(self.directory))
        self.assertEqual("why", json.loads(done.output)["was_blocked"])

    def test_a_failure_is_an_error_with_its_reason(self):
        with self.allocator(ScrubFailed("device 0000:3b:00.0 could not be cleaned: still in use")):
            done = run("scrub", "0000:3b:00.0", "--owners", str(self.directory))
        self.assertEqual((1, "Error: device 0000:3b:00.0 could not be cleaned: still in use\n"),
                         (done.exit_code, done.stderr))

    def test_what_is_no_device_changes_nothing(self):
        for name in ("0000:99:00.0", "../../etc", "", "--"):
            done = run("scrub", "--owners", str(self.directory), "--", name)
            self.assertEqual(1, done.exit_code, name)
            self.assertIn("this host has no device", done.stderr)
        self.assertFalse(self.directory.exists())


class Topology(testtools.TestCase):
    def test_people_see_nodes_and_devices_near(self):
        lines = run("topology", "--root", str(shared("mixed").root)).output.splitlines()
        self.assertIn("2 sockets, 16 cores, 2 threads each", lines[0])
        node = next(line for line in lines if line.startswith("1 "))
        for words in ("16-31,48-63", "256.0", "2048KiB:512/512 1048576KiB:4/4", "21 10", "0000:83:00.0"):
            self.assertIn(words, node)

    def test_json(self):
        found = json.loads(run("topology", "--json", "--root", str(shared("mixed").root)).output)
        self.assertEqual([*range(16), *range(32, 48)], found["nodes"][0]["cpus"])
        self.assertEqual(sorted(found["cpu"]["features"]), found["cpu"]["features"])


    def test_what_lies_between_gpus_and_cards(self):
        root = str(shared("mixed").root)
        lines = run("topology", "--root", root).output.splitlines()
        header = next(line for line in lines if line.startswith("GPU "))
        self.assertEqual(["GPU", "0000:31:00.0", "0000:5e:00.0", "0000:d8:00.0", "0000:d8:00.1"], header.split())
        self.assertIn("0000:83:00.0  SYS           SYS           NODE          NODE", lines)
        found = json.loads(run("topology", "--json", "--root", root).output)["pci_topology"]
        self.assertIn({"gpu": "0000:3b:00.0", "function": "0000:5e:00.1", "way": "NODE"}, found)


class Rdma(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.tree = self.useFixture(Broken("mixed"))
        self.root = str(self.tree.root)

    def test_json(self):
        inventory = scan(self.tree.host)
        AllocationStore(self.tree.root / "records").claim([inventory.get("0000:d8:00.2")], OWNER, inventory.related)
        output = run("rdma", "--json", "--root", self.root, "--owners", str(self.tree.root / "records")).output
        found = json.loads(output)
        self.assertEqual(("shared", True), (found["network_namespaces"], found["rdma_cm"]))
        row = next(row for row in found["devices"] if row["device"] == "0000:d8:00.2")
        self.assertEqual(("mlx5_6", "ethernet", False, "NODE"),
                         (row["ibdev"], row["link_layer"], row["elsewhere"], row["way"]))
        self.assertEqual(["0xffff"], row["ports"][0]["pkeys"])
        self.assertEqual("RoCE v2", row["ports"][0]["gids"][1]["kind"])
        self.assertEqual(["0000:83:00.0", "0000:84:00.0", "0000:9a:00.0"], row["nearest_gpus"])
        self.assertEqual(str(OWNER), row["owner"])

    def test_people_see_a_port_a_line(self):
        self.tree.write("/sys/module/ib_core/parameters/netns_mode", "N\n")
        shutil.rmtree(self.tree.function("0000:5e:00.2") / "infiniband")
        lines = run("rdma", "--root", self.root).output.splitlines()
        roce = next(line for line in lines if line.startswith("0000:d8:00.2"))
        self.assertIn("1=fe80::b8ce:f603:d800:3 (RoCE v2)", roce)
        self.assertIn("in another namespace", next(line for line in lines if line.startswith("0000:5e:00.2")))
        self.assertEqual(["network namespaces: exclusive", "rdma_cm: there"], lines[-2:])

    def test_without_its_connection_manager(self):
        shutil.rmtree(self.tree.path("/sys/devices/virtual/misc/rdma_cm"))
        self.tree.write("/proc/misc", "229 fuse\n")
        self.assertIn("rdma_cm: missing: programs", run("rdma", "--root", self.root).output.splitlines()[-1])

    def test_a_host_without_any(self):
        self.assertEqual("no RDMA device\n", run("rdma", "--root", self.useFixture(Empty()).path).output)


class Drawing(testtools.TestCase):
    def test_ranges(self):
        for numbers, expected in (((), ""), ((3,), "3"), ((0, 1, 2, 5, 7, 8), "0-2,5,7-8")):
            self.assertEqual(expected, id_text(numbers))

    def test_columns_that_say_nothing_are_left_out(self):
        self.assertEqual("A  C\n1  33", report.table(("a", "b", "c"), [("1", "", "33")]))
