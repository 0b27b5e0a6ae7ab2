# SPDX-License-Identifier: Apache-2.0
import json

import testtools

from containerhost import errors
from containerhost.engines import bounds
from containerhost.engines.bounds import LABEL, Bounds, Range, Wanted
from containerhost.engines.spec import ContainerSpec, Cpu, Memory, RootDisk
from hpcplan.affinity import Affinity

GiB = 1 << 30


def bounds_of(wanted: Wanted, cpu: Cpu | None = None, memory: Memory | None = None) -> Bounds:
    return bounds.bounds_of(wanted, cpu or Cpu(4), memory or Memory(GiB), "Flavor f")


class ClaimTest(testtools.TestCase):
    def test_what_is_not_said_is_what_the_cloud_claimed(self) -> None:
        self.assertEqual(Bounds(Range(1, 4), Range(GiB, GiB)), bounds_of(Wanted(1)))
        self.assertEqual(Bounds(Range(2, 3), Range(GiB // 2, GiB), 9, frozenset({4, 5, 6, 7})),
                         bounds_of(Wanted(2, 3, GiB // 2, GiB, 9), Cpu(4, frozenset({4, 5, 6, 7}))))

    def test_refusals_name_what_is_wrong(self) -> None:
        for wanted, cpu, memory, words in (
                (Wanted(5), None, None, "elastic cores are requested from 5 to 4"),
                (Wanted(1, 8), None, None, "at most 4, which is what the cloud has claimed"),
                (Wanted(0), None, None, "from at least 1"),
                (Wanted(3, 2), None, None, "from 3 to 2"),
                (Wanted(1, memory_least=2 * GiB), None, None, "elastic memory"),
                (Wanted(1, memory_least=1), None, None, "elastic memory"),
                (Wanted(1, priority=11), None, None, "priority is 11"),
                (Wanted(1), Cpu(4, affinity=Affinity.CPUMEM, choice=frozenset(range(8))), None, "affinity"),
                (Wanted(1, memory_least=GiB // 2), None, Memory(GiB, {2 << 20: GiB}), "huge pages")):
            with self.subTest(words):
                error = self.assertRaises(errors.SpecError, bounds_of, wanted, cpu, memory)
                self.assertIn(words, str(error))
                self.assertIn("Flavor f", str(error))

    def test_mark_is_read_as_it_was_written(self) -> None:
        for own in (bounds_of(Wanted(1)), bounds_of(Wanted(2, 3, GiB // 2, GiB, 0), Cpu(4, frozenset({0, 2, 3})))):
            self.assertEqual(own, bounds.parse({LABEL: bounds.mark(own)}))
        self.assertIsNone(bounds.parse({"other": "1"}))

    def test_later_releases_marks_are_read_and_rubbish_is_refused(self) -> None:
        later = json.loads(bounds.mark(bounds_of(Wanted(1)))) | {"version": 7, "gpus": [0, 1]}
        self.assertEqual(bounds_of(Wanted(1)), bounds.parse({LABEL: json.dumps(later)}))
        for text in ("", "{", "[]", "{}", "[" * 60000, json.dumps(later | {"cpus": [0, 1]}),
                     json.dumps(later | {"cpus": [3, 1]}), json.dumps(later | {"cpus": ["1", 2]}),
                     json.dumps(later | {"cpus": [1, 2, 3]}), json.dumps(later | {"memory": 4}),
                     json.dumps(later | {"cores": "0-3;rm"}), json.dumps(later | {"priority": -1}),
                     json.dumps(later | {"cpus": [True, 2]})):
            self.assertRaises(ValueError, bounds.parse, {LABEL: text})


class KeepingTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.own = bounds_of(Wanted(1, memory_least=GiB // 2))
        self.spec = bounds.marked(ContainerSpec("c1", "i", Cpu(4, share=400), Memory(GiB), RootDisk("p")), self.own)
        self.document = {"cpus": {"count": 2, "cores": [0, 1]}, "memory": GiB // 2}

    def test_size_given_by_the_service_stays_while_the_claim_does(self) -> None:
        kept = bounds.keeping_size(self.spec, bounds.mark(self.own), self.document)
        self.assertEqual((2, frozenset({0, 1}), 400, GiB // 2),
                         (kept.cpu.count, kept.cpu.cores, kept.cpu.share, kept.memory.size))

    def test_full_size_otherwise(self) -> None:
        mark = bounds.mark(self.own)
        for other, document in ((None, self.document), (bounds.mark(bounds_of(Wanted(2))), self.document), (mark, None),
                                (mark, {"cpus": {"count": 4, "cores": []}, "memory": GiB}),
                                (mark, self.document | {"memory": 2 * GiB}), (mark, self.document | {"cpus": 3})):
            self.assertEqual(self.spec, bounds.keeping_size(self.spec, other, document))
