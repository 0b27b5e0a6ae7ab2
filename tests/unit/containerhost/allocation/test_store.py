# SPDX-License-Identifier: Apache-2.0
import contextlib
import dataclasses
import errno
import json
import math
import os
import time
from pathlib import Path
from typing import Any
from unittest import mock

import fixtures
import testtools

from containerhost.allocation.store import Allocation, AllocationStore, Consumer
from containerhost.devices.model import Device, Kind
from containerhost.errors import AllocationsUnreadable, DeviceHeld, DeviceNotFound
from tests.unit.containerhost.hosts import MEMORY

ANNA = Consumer("nova", "lxd", "instance-00000001", "11111111-1111-4111-8111-111111111111")
BERT = Consumer("nova", "lxd", "instance-00000002", "22222222-2222-4222-8222-222222222222")


def device(name: str) -> Device:
    return Device(id=name, address=name.partition("/")[0], kind=Kind.GPU, vendor_id="10de", product_id="20b0",
                  class_code="030200", plugin="nvidia")


GPU, OTHER = device("0000:3b:00.0"), device("0000:3c:00.0")
SLICES = (device("0000:3b:00.0/gi1/ci0"), device("0000:3b:00.0/gi2/ci0"))


def related(one: Device) -> tuple[Device, ...]:
    if one == GPU:
        return SLICES
    return (GPU,) if one in SLICES else ()


class StoreTestCase(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.root = Path(self.useFixture(fixtures.TempDir(rootdir=MEMORY)).path) / "owners"
        self.store = AllocationStore(self.root, lock_limit=10)

    def held(self) -> dict[str, str]:
        return {name: record.consumer.container for name, record in AllocationStore(self.root).records().items()}


class Claims(StoreTestCase):
    def test_claim_and_release(self):
        self.store.claim([GPU, OTHER], ANNA, related)
        self.assertEqual({GPU.id: Allocation(GPU.id, ANNA), OTHER.id: Allocation(OTHER.id, ANNA)}, self.store.records())
        self.assertEqual({GPU.id: Allocation(GPU.id, ANNA), OTHER.id: Allocation(OTHER.id, ANNA)},
                         self.store.held_by(ANNA))
        self.assertEqual({}, self.store.held_by(BERT))
        self.store.release(GPU.id, ANNA)
        self.assertEqual({OTHER.id: ANNA.container}, self.held())

    def test_records_outlive_the_process_that_made_them(self):
        self.store.claim([SLICES[0]], ANNA, related)
        self.assertEqual(self.store.records(), AllocationStore(self.root).records())
        self.assertEqual(["0000:3b:00.0+gi1+ci0.json"], [file.name for file in self.root.glob("*.json")])

    def test_claiming_again_changes_nothing(self):
        self.store.claim([GPU], ANNA, related)
        self.store.prepare(GPU.id, ANNA, {"mac": "00:00:00:00:00:01"})
        before = self.store.records()
        self.store.claim([GPU], ANNA, related)
        self.assertEqual(before, self.store.records())

    def test_a_claim_may_grow(self):
        self.store.claim([GPU], ANNA, related)
        self.store.claim([GPU, OTHER], ANNA, related)
        self.assertEqual({GPU.id, OTHER.id}, set(self.held()))

    def test_all_or_nothing(self):
        self.store.claim([OTHER], BERT, related)
        error = self.assertRaises(DeviceHeld, self.store.claim, [GPU, OTHER], ANNA, related)
        self.assertEqual({OTHER.id: BERT.container}, self.held())
        for word in (OTHER.id, ANNA.container, BERT.container):
            self.assertIn(word, str(error))

    def test_a_part_and_the_whole_exclude_each_other(self):
        for first, second, allowed in ((GPU, SLICES[0], False), (SLICES[0], GPU, False), (*SLICES, True),
                                       (GPU, OTHER, True)):
            store = AllocationStore(self.root / first.id.replace("/", "-") / second.id.replace("/", "-"))
            store.claim([first], ANNA, related)
            if allowed:
                store.claim([second], BERT, related)
            else:
                error = self.assertRaises(DeviceHeld, store.claim, [second], BERT, related)
                self.assertIn(first.id, str(error))

    def test_one_owner_may_have_a_part_and_the_whole(self):
        self.store.claim([GPU], ANNA, related)
        self.store.claim([SLICES[0]], ANNA, related)
        self.assertEqual(2, len(self.held()))

    def test_the_same_name_with_another_uuid_is_another_owner(self):
        self.store.claim([GPU], ANNA, related)
        again = Consumer(ANNA.driver, ANNA.engine, ANNA.container, BERT.uuid)
        self.assertRaises(DeviceHeld, self.store.claim, [GPU], again, related)

    def test_nothing_to_claim(self):
        self.store.claim([], ANNA, related)
        self.assertEqual({}, self.held())

    def test_ids_that_could_leave_the_directory(self):
        for name in ("../../etc/passwd", "/etc/passwd", "a/../../b", ".lock", "", "a\n", "a+b"):
            self.assertRaises(DeviceNotFound, self.store.claim, [GPU, device(name)], ANNA, lambda one: ())
        self.assertFalse(self.root.exists())

    def test_looking_needs_no_privileges_and_changes_nothing(self):
        self.assertEqual({}, self.store.records())
        self.assertFalse(self.root.exists())
        self.store.claim([GPU], ANNA, related)
        self.assertEqual(0o444, (self.root / f"{GPU.id}.json").stat().st_mode & 0o444)


class Restoring(StoreTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.store.claim([GPU], ANNA, related)

    def test_the_first_value_is_the_former_one(self):
        self.store.prepare(GPU.id, ANNA, {"guid": "first"})
        self.store.prepare(GPU.id, ANNA, {"guid": "changed meanwhile", "mac": "new"})
        self.assertEqual({"guid": "first", "mac": "new"}, self.store.records()[GPU.id].restore)

    def test_only_the_owner_remembers_and_releases(self):
        self.assertRaises(DeviceHeld, self.store.prepare, GPU.id, BERT, {})
        self.assertRaises(DeviceHeld, self.store.release, GPU.id, BERT)
        self.assertRaises(DeviceNotFound, self.store.prepare, OTHER.id, ANNA, {})
        self.assertEqual({GPU.id: ANNA.container}, self.held())

    def test_releasing_what_is_free_is_no_error(self):
        self.store.release(GPU.id, ANNA)
        self.store.release(GPU.id, ANNA)
        self.store.release(OTHER.id, BERT)

    def test_a_blocked_device_is_nobodys_until_unblocked(self):
        self.store.prepare(GPU.id, ANNA, {"guid": "first"})
        self.store.block(GPU.id, "its memory could not be cleared")
        for attempt in (lambda: self.store.claim([GPU], ANNA, related),
                        lambda: self.store.claim([GPU], BERT, related),
                        lambda: self.store.claim([SLICES[0]], BERT, related),
                        lambda: self.store.release(GPU.id, ANNA)):
            self.assertIn("could not be cleared", str(self.assertRaises(DeviceHeld, attempt)))
        self.assertEqual({"guid": "first"}, self.store.held_by(ANNA)[GPU.id].restore)
        self.store.begin_cleaning(GPU.id)
        self.store.release(GPU.id, ANNA)
        self.store.claim([GPU], BERT, related)

    def test_only_a_blocked_device_is_freed_without_its_owner(self):
        self.assertIn(ANNA.container, str(self.assertRaises(DeviceHeld, self.store.free, GPU.id)))
        self.store.block(GPU.id, "why")
        self.store.free(GPU.id)
        self.assertRaises(DeviceNotFound, self.store.free, GPU.id)

    def test_only_held_devices_are_blocked(self):
        self.assertRaises(DeviceNotFound, self.store.block, OTHER.id, "why")
        self.assertRaises(DeviceNotFound, self.store.begin_cleaning, OTHER.id)


class FailClosed(StoreTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.store.claim([GPU], ANNA, related)
        self.file = self.root / f"{GPU.id}.json"

    def test_a_record_that_cannot_be_trusted_stops_every_claim(self):
        sound = json.loads(self.file.read_text())
        for content in (
            b"", b"{", b"null", b"[]", b"\xff\xfe", b"[" * 100_000, json.dumps(sound | {"owner": None}).encode(),
            json.dumps(sound | {"owner": sound["owner"] | {"container": 7}}).encode(),
            json.dumps(sound | {"restore": ["mac"]}).encode(), json.dumps(sound | {"restore": {"mac": 1}}).encode(),
            json.dumps(sound | {"blocked": 1}).encode(), json.dumps(sound | {"device_id": OTHER.id}).encode(),
            json.dumps(sound | {"device_id": "../x"}).encode(),
            json.dumps(sound | {"version": "2"}).encode(), json.dumps(sound | {"version": 0}).encode(),
            json.dumps(sound | {"version": True}).encode(), json.dumps(sound | {"state": 1}).encode(),
            json.dumps(sound | {"state": "blocked"}).encode(), json.dumps(sound | {"boot_id": 1}).encode(),
            json.dumps(sound | {"since": 1}).encode(),
            json.dumps(sound | {"holders": [[math.inf, 1]]}).encode(),
            json.dumps({key: sound[key] for key in sound if key != "restore"}).encode(),
        ):
            self.file.write_bytes(content)
            for attempt in (lambda: self.store.claim([OTHER], BERT, related),
                            lambda: self.store.release(GPU.id, ANNA), self.store.records,
                            lambda: self.store.block(GPU.id, "why")):
                error = self.assertRaises(AllocationsUnreadable, attempt)
                self.assertIn(str(self.file), str(error))
            self.assertEqual(content, self.file.read_bytes())

    def test_unreadable_record_of_another_consumer_keeps_nothing_from_release(self):
        self.store.claim([OTHER], BERT, related)
        self.file.write_bytes(b"")
        self.assertEqual([OTHER.id], list(self.store.held_by(BERT)))
        self.store.attach([OTHER.id], BERT)
        self.store.begin_cleaning(OTHER.id)
        self.store.release(OTHER.id, BERT)
        self.assertEqual({}, self.store.held_by(BERT))
        error = self.assertRaises(AllocationsUnreadable, self.store.claim, [OTHER], BERT, related)
        self.assertIn(f"last claimed by {ANNA}", str(error))

    def test_unreadable_record_that_may_be_the_consumers_own_is_refused(self):
        last = self.root / f".{GPU.id}.last"
        self.file.write_bytes(b"")
        self.assertRaises(AllocationsUnreadable, self.store.held_by, ANNA)
        for content in (None, "", "[1]", "{}", json.dumps(dataclasses.asdict(ANNA) | {"uuid": 1})):
            last.unlink(missing_ok=True)
            if content is not None:
                last.write_text(content)
            for consumer in (ANNA, BERT):
                self.assertRaises(AllocationsUnreadable, self.store.held_by, consumer)

    def test_unreadable_record_names_who_claimed_the_device_last(self):
        self.store.release(GPU.id, ANNA)
        self.store.claim([GPU], BERT, related)
        self.file.write_bytes(b"")
        self.assertEqual({}, self.store.held_by(ANNA))
        self.assertRaises(AllocationsUnreadable, self.store.held_by, BERT)

    def test_a_record_that_is_no_file(self):
        self.file.unlink()
        for make in (self.file.mkdir, lambda: self.file.symlink_to(self.root / "nonexistent")):
            make()
            self.assertRaises(AllocationsUnreadable, self.store.claim, [OTHER], BERT, related)
            self.file.unlink() if self.file.is_symlink() else self.file.rmdir()

    def test_a_journal_that_cannot_be_trusted(self):
        for content in ("{", "{}", '["../../etc/passwd"]', "[1]"):
            (self.root / ".claim").write_text(content)
            self.assertRaises(AllocationsUnreadable, self.store.claim, [OTHER], BERT, related)
            self.assertEqual({GPU.id: ANNA.container}, self.held())

    def test_a_directory_that_is_no_directory(self):
        store = AllocationStore(self.file)
        self.assertRaises(AllocationsUnreadable, store.claim, [OTHER], BERT, related)
        self.assertRaises(AllocationsUnreadable, store.records)

    def test_what_others_left_in_the_directory_is_no_record(self):
        (self.root / "README").write_text("x")
        (self.root / f"{OTHER.id}.json.bak").write_text("x")
        self.assertEqual({GPU.id: ANNA.container}, self.held())

    def test_a_full_disk_leaves_nothing_half_done(self):
        for step in range(1, 7):
            calls = iter(range(1, 100))

            def failing(handle: int, step: int = step, calls=calls, sync=os.fsync) -> None:
                if next(calls) == step:
                    raise OSError(errno.ENOSPC, "No space left on device")
                sync(handle)

            with mock.patch("os.fsync", failing), contextlib.suppress(AllocationsUnreadable):
                self.store.claim([OTHER, device("0000:3d:00.0")], BERT, related)
            self.assertIn(len(self.held()), (1, 3))
            self.assertEqual([], list(self.root.glob(".claim")))
            for device_id in self.store.held_by(BERT):
                self.store.release(device_id, BERT)


class Interrupted(StoreTestCase):
    """A process may be killed between the records of one claim."""

    def setUp(self) -> None:
        super().setUp()
        self.journal = self.root / ".claim"

    def test_journal_has_all_devices_until_the_last_is_recorded(self):
        journals = []
        rename = os.rename

        def noting(old: str, new: str, **directories: Any) -> None:
            if not new.startswith("."):
                journals.append(json.loads(self.journal.read_text()) if self.journal.exists() else None)
            rename(old, new, **directories)

        with mock.patch("os.rename", noting):
            self.store.claim([GPU, OTHER], ANNA, related)
        self.assertEqual([[GPU.id, OTHER.id]] * 2, journals[-2:])
        self.assertFalse(self.journal.exists())

    def test_claim_of_the_journal_is_taken_back_once(self):
        self.store.claim([GPU], BERT, related)
        self.journal.write_text(json.dumps([GPU.id, OTHER.id]))
        self.store.release(OTHER.id, ANNA)
        self.assertEqual({}, self.held())
        self.store.claim([GPU], ANNA, related)
        self.store.release(OTHER.id, ANNA)
        self.assertEqual({GPU.id: ANNA.container}, self.held())


class Concurrency(StoreTestCase):
    def test_a_lock_that_is_never_let_go_is_an_error_in_time(self):
        self.store.claim([GPU], ANNA, related)
        with self.store._locked():
            begin = time.monotonic()
            error = self.assertRaises(AllocationsUnreadable, AllocationStore(self.root, lock_limit=0.2).claim, [OTHER],
                                      BERT, related)
            self.assertLess(time.monotonic() - begin, 5)
        self.assertIn("locked", str(error))

    def test_each_change_waits_for_the_lock(self):
        self.store.claim([GPU], ANNA, related)
        other = AllocationStore(self.root, lock_limit=0.01)
        with self.store._locked():
            for change, arguments in ((other.block, ("why",)), (other.begin_cleaning, ()), (other.release, (ANNA,)),
                                      (other.free, ())):
                self.assertIn("locked", str(self.assertRaises(AllocationsUnreadable, change, GPU.id, *arguments)))

    def test_looking_while_others_work(self):
        """A record may vanish between finding its name and reading it."""
        self.store.claim([GPU, OTHER], ANNA, related)
        names = self.store._names()
        self.store.release(OTHER.id, ANNA)
        with mock.patch.object(self.store, "_names", return_value=names):
            self.assertEqual({GPU.id}, set(self.store.records()))
