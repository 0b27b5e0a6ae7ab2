# SPDX-License-Identifier: Apache-2.0
"""Test the hand-overs of devices: what is kept, that it is signed, and what a kill between its steps leaves."""

import json
import os
import pathlib
from typing import Any
from unittest import mock

import fixtures
from click.testing import CliRunner

from containerhost import errors
from containerhost.allocation import provenance
from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.provenance import complaint
from containerhost.allocation.states import State
from containerhost.allocation.store import AllocationStore
from containerhost.guest import resources
from containerhost.inventory.scan import HostView
from containerhost.linux.sysfs import Host
from containerhost.operator.cli import main
from tests.unit.containerhost.allocation.allocatorcase import AllocatorTestCase, NoHardware, Willing, consumer


class Killed(BaseException):
    """The process ends here."""


class Functions(Willing):
    """Binds and resets network functions of a described host, which stay as they are."""

    def unbind(self, address: str, driver: str) -> None:
        pass

    bind = unbind

    def reset(self, address: str) -> bool:
        return True

    def link_down_and_flush(self, name: str) -> None:
        pass


class ProvenanceTestCase(AllocatorTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.gpu, self.vf = self.gpus[0].id, self.vfs[0].id
        self.allocator = self.allocator_with(Functions())

    def allocator_with(self, root: NoHardware) -> DeviceAllocator:
        return DeviceAllocator(self.store, lambda: HostView(self.host), root, lambda devices: self.foreign, self.host)

    def hand_over(self, name: str, *ids: str) -> None:
        self.acquire(name, *ids)
        self.assertEqual((), self.allocator.release(consumer(name)))

    def complaints(self, device_id: str) -> list[str | None]:
        key = self.store.provenance.public_key()
        return [complaint(entry, device_id, key) for entry in self.store.hand_overs(device_id)]

    def file(self, device_id: str) -> pathlib.Path:
        return self.store.directory / f".{device_id}.handovers"


class HandOverTest(ProvenanceTestCase):
    def test_records_how_a_device_was_cleaned(self) -> None:
        self.hand_over("anna", self.gpu, self.vf)
        (gpu,), (vf,) = self.store.hand_overs(self.gpu), self.store.hand_overs(self.vf)
        self.assertEqual((1, self.gpu, ["it was reset"], "nvidia", "nvidia"),
                         (gpu["number"], gpu["device"], gpu["cleaned"], gpu["reset"], gpu["driver"]))
        self.assertEqual((["its driver was rebound", "it was reset"], "kernel", {}),
                         (vf["cleaned"], vf["reset"], vf["errors"]))
        self.assertLess(gpu["given"][:19], gpu["released"][:19] + "~")
        self.assertEqual([None], self.complaints(self.gpu))

    def test_names_no_consumer(self) -> None:
        self.hand_over("anna", self.gpu)
        self.hand_over("anna", self.gpu)
        text = self.file(self.gpu).read_text()
        self.assertNotIn("anna", text)
        first, second = self.store.hand_overs(self.gpu)
        self.assertNotEqual(first["consumer"], second["consumer"])
        seed = self.store.provenance.seed()
        self.assertEqual(first["consumer"], provenance.opaque(seed, self.gpu, first["given"], consumer("anna").uuid))

    def test_only_the_owner_reads_the_key(self) -> None:
        self.hand_over("anna", self.gpu)
        self.assertEqual(0o600, os.stat(self.store.directory / provenance.KEY).st_mode & 0o777)

    def test_nothing_of_a_device_that_no_container_was_given(self) -> None:
        self.assertRaises(errors.DeviceNotFound, self.acquire, "anna", self.gpu, "0000:00:00.0")
        self.acquire("anna", self.gpu)
        with mock.patch.object(self.store, "attach", side_effect=errors.HostActionFailed("killed before")):
            self.assertRaises(errors.HostActionFailed, self.acquire, "bert", self.gpus[1].id)
        self.assertEqual([], self.store.hand_overs(self.gpus[1].id))
        self.allocator.repair.clean(self.gpus[1].id)
        self.assertEqual([], self.store.hand_overs(self.gpus[1].id))

    def test_keeps_as_many_as_the_operator_says(self) -> None:
        other = AllocationStore(self.store.directory, host=self.configured("3\n"))
        for number in range(12):
            self.hand_over("anna", self.gpu)
            self.assertEqual(min(number + 1, 10), len(self.store.hand_overs(self.gpu)))
        self.store = other
        self.allocator = self.allocator_with(Functions())
        self.hand_over("anna", self.gpu)
        self.assertEqual([11, 12, 13], [entry["number"] for entry in self.store.hand_overs(self.gpu)])

    def configured(self, text: str) -> Host:
        root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        (root / "etc/containerhost").mkdir(parents=True)
        (root / "etc/containerhost/handovers").write_text(text)
        return Host(root)

    def test_unblocked_device_was_not_cleaned(self) -> None:
        self.acquire("anna", self.gpu)
        (reason,) = self.allocator_with(NoHardware()).release(consumer("anna"))
        self.assertEqual([], self.store.hand_overs(self.gpu), reason)
        self.store.free(self.gpu)
        (entry,) = self.store.hand_overs(self.gpu)
        self.assertIsNone(entry["cleaned"])

    def test_record_of_an_earlier_release_was_given_at_an_unknown_time(self) -> None:
        self.acquire("anna", self.gpu)
        path = self.store.directory / f"{self.gpu}.json"
        content = json.loads(path.read_text())
        path.write_text(json.dumps({name: value for name, value in content.items() if name not in ("given", "before")}))
        self.allocator.release(consumer("anna"))
        self.assertEqual(["unknown"], [entry["given"] for entry in self.store.hand_overs(self.gpu)])


class SignatureTest(ProvenanceTestCase):
    def change(self, **changes: Any) -> None:
        (entry,) = self.store.hand_overs(self.gpu)
        self.file(self.gpu).write_text(json.dumps([entry | changes]))

    def test_change_is_seen(self) -> None:
        self.hand_over("anna", self.gpu)
        for changes in ({"cleaned": ["it was cleaned by hand"]}, {"reset": None}, {"released": "2020-01-01"},
                        {"signature": "AAAA"}, {"signature": None}, {"more": 1}):
            sound = self.file(self.gpu).read_bytes()
            self.change(**changes)
            self.assertEqual(["changed since it was signed"], self.complaints(self.gpu), changes)
            self.file(self.gpu).write_bytes(sound)
        self.assertEqual([None], self.complaints(self.gpu))

    def test_record_of_another_device_is_seen(self) -> None:
        self.hand_over("anna", self.gpu, self.gpus[1].id)
        self.file(self.gpu).write_bytes(self.file(self.gpus[1].id).read_bytes())
        self.assertEqual(["of another device"], self.complaints(self.gpu))

    def test_another_hosts_key_is_seen(self) -> None:
        self.hand_over("anna", self.gpu)
        (self.store.directory / provenance.KEY).write_text("no key")
        self.hand_over("bert", self.gpu)
        self.assertEqual(["signed with another key than this host's", None], self.complaints(self.gpu))

    def test_key_of_the_directorys_former_owner_keeps_no_device(self) -> None:
        """Root made it, and the directory was given to a service's user afterwards."""
        self.hand_over("anna", self.gpu)
        with mock.patch.object(self.store.provenance, "seed", side_effect=PermissionError("not mine")):
            self.hand_over("bert", self.gpu)
        self.assertEqual(["signed with another key than this host's", None], self.complaints(self.gpu))

    def test_public_key_that_was_lost_is_written_again(self) -> None:
        public = self.store.directory / provenance.PUBLIC_KEY
        self.hand_over("anna", self.gpu)
        for lose in (public.unlink, lambda: public.write_bytes(b"\xff")):
            lose()
            self.hand_over("bert", self.gpu)
            self.assertEqual({None}, set(self.complaints(self.gpu)))

    def test_unreadable_history_keeps_no_device(self) -> None:
        for damage in (b"", b"\0\xff{", b"{}", b"[1]"):
            self.hand_over("anna", self.gpu)
            self.file(self.gpu).write_bytes(damage)
            self.assertRaises(errors.AllocationsUnreadable, self.store.hand_overs, self.gpu)
            self.hand_over("bert", self.gpu)
            self.assertEqual([1], [entry["number"] for entry in self.store.hand_overs(self.gpu)])


class NextConsumerTest(ProvenanceTestCase):
    def device(self, *grants: Any) -> dict[str, Any]:
        return resources._device(grants[0])

    def test_next_container_is_told_how_its_device_was_cleaned(self) -> None:
        self.assertNotIn("provenance", self.device(*self.acquire("anna", self.gpu)))
        self.allocator.release(consumer("anna"))
        told = self.device(*self.acquire("bert", self.gpu))["provenance"]
        (entry,) = self.store.hand_overs(self.gpu)
        self.assertEqual(entry, told)
        self.assertNotIn("anna", json.dumps(told))
        self.assertEqual(told, self.device(*self.allocator.held(consumer("bert")))["provenance"])

    def test_its_own_time_is_not_told_before_it_ends(self) -> None:
        self.hand_over("anna", self.gpu)
        (grant,) = self.acquire("bert", self.gpu)
        (same,) = self.acquire("bert", self.gpu)
        self.assertEqual(self.device(grant), self.device(same))


class KilledTest(ProvenanceTestCase):
    def test_killed_between_hand_over_and_release(self) -> None:
        """Keep the device its consumer's, without a hand-over to read; there is one in the end."""
        self.acquire("anna", self.gpu)
        with mock.patch.object(self.store, "_remove", side_effect=Killed):
            self.assertRaises(Killed, self.allocator.release, consumer("anna"))
        self.assertEqual(State.CLEANING, self.store.records()[self.gpu].state)
        self.assertEqual([], self.store.hand_overs(self.gpu))
        self.assertRaises(errors.DeviceHeld, self.acquire, "bert", self.gpu)
        (complaint_,) = self.allocator_with(NoHardware()).reconciler.reconcile("test", "lxd", [])
        self.assertEqual(([], State.BLOCKED), (self.store.hand_overs(self.gpu), self.store.records()[self.gpu].state),
                         complaint_)
        self.allocator.repair.clean(self.gpu)
        self.assertEqual([1], [entry["number"] for entry in self.store.hand_overs(self.gpu)])
        self.assertEqual({}, self.store.records())

    def test_killed_while_it_is_written(self) -> None:
        for name in (provenance.PUBLIC_KEY, provenance.KEY, self.file(self.gpu).name):
            with mock.patch.object(self.store.provenance, "_put", side_effect=self.killed_at(name)):
                self.acquire("anna", self.gpu)
                self.assertRaises(Killed, self.allocator.release, consumer("anna"))
            self.assertEqual(State.CLEANING, self.store.records()[self.gpu].state)
            self.assertEqual([], self.store.hand_overs(self.gpu))
        self.assertEqual((), self.allocator.reconciler.reconcile("test", "lxd", []))
        self.assertEqual([None], self.complaints(self.gpu))

    def killed_at(self, name: str) -> Any:
        def put(file: str, text: str, mode: int) -> None:
            if file == name:
                raise Killed
            self.store._put(file, text, mode)
        return put


class CommandTest(ProvenanceTestCase):
    def command(self, *words: str, status: int = 0) -> str:
        done = CliRunner().invoke(main, ["provenance", *words, "--owners", str(self.store.directory)])
        self.assertEqual(status, done.exit_code, done.output)
        return done.output

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch("containerhost.operator.provenancecli.Host", lambda: self.host))

    def test_shows_hand_overs_and_verifies_them(self) -> None:
        self.assertEqual(f"no hand-over of {self.gpu} is known here\n", self.command(self.gpu))
        self.hand_over("anna", self.gpu)
        self.hand_over("bert", self.gpu)
        headings, *rows = self.command(self.gpu.upper()).splitlines()
        self.assertEqual(["NUMBER", "CONTAINER", "GIVEN", "RELEASED", "CLEANED", "SIGNATURE"], headings.split())
        self.assertEqual([("1", "valid"), ("2", "valid")], [(row.split()[0], row.split()[-1]) for row in rows])
        told = json.loads(self.command(self.gpu, "--json"))
        self.assertEqual((self.store.provenance.public_key(), [True, True]),
                         (told["key"], [entry["valid"] for entry in told["handovers"]]))

    def test_shows_those_of_one_container(self) -> None:
        for name in ("anna", "bert", "anna"):
            self.hand_over(name, self.gpu)
        told = json.loads(self.command(self.gpu, "--json", "--container", consumer("anna").uuid))
        self.assertEqual([1, 3], [entry["number"] for entry in told["handovers"]])
        self.assertEqual(f"no hand-over of {self.gpu} to the container nobody is known here\n",
                         self.command(self.gpu, "--container", "nobody"))

    def test_fails_where_a_signature_is_not_valid(self) -> None:
        self.hand_over("anna", self.gpu)
        path = self.file(self.gpu)
        path.write_text(path.read_text().replace("it was reset", "it was \\u001b[31m"))
        self.assertIn("changed since it was signed", self.command(self.gpu, status=1))
        self.assertNotIn("\x1b", self.command(self.gpu, status=1))

    def test_refuses_what_is_no_device(self) -> None:
        self.assertIn("is not a device id", self.command("../x", status=1))
        for words in ((), ("--json",)):
            self.assertIn("this host has no device 0000:ff:00.0", self.command("0000:FF:00.0", *words, status=1))

    def test_names_a_key_that_is_lost_or_damaged(self) -> None:
        self.hand_over("anna", self.gpu)
        key = self.store.directory / ".host.key"
        for damage in (lambda: key.write_text("not mine"), key.unlink):
            damage()
            self.assertIn(f"{key}", self.command(self.gpu, "--container", consumer("anna").uuid, status=1))
            self.assertIn("valid", self.command(self.gpu))

    def test_shows_those_of_a_device_that_left(self) -> None:
        self.hand_over("anna", self.gpu)
        self.useFixture(fixtures.MonkeyPatch("containerhost.operator.provenancecli.Host", lambda: Host("/absent")))
        self.assertIn("valid", self.command(self.gpu))
