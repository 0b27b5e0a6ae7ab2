# SPDX-License-Identifier: Apache-2.0
import unittest

import fixtures
import testtools

from tests import levels

SHARES = 5
REASON = "it repeats what another one shows"


def listed(case: type) -> set[str]:
    return set(unittest.defaultTestLoader.getTestCaseNames(case))


def marked(when: bool = True) -> type:
    """Return a new class with one test of the gate, one of the exhaustive level, and one it has from another class."""
    class Contract(unittest.TestCase):
        def test_inherited(self) -> None: ...

    class Case(Contract):
        def test_kept(self) -> None: ...

        @levels.exhaustive(REASON, when)
        def test_repeated(self) -> None: ...
    return Case


class LevelsTest(testtools.TestCase):
    def use(self, level: str, share: str = "") -> None:
        self.useFixture(fixtures.MonkeyPatch("tests.levels.LEVEL", level))
        self.useFixture(fixtures.MonkeyPatch("tests.levels.SHARE", share))

    def test_gate_lists_no_repetition_without_a_share(self) -> None:
        self.use("gate")
        self.assertEqual({"test_inherited", "test_kept"}, listed(marked()))

    def test_exhaustive_level_and_a_module_run_by_hand_list_all(self) -> None:
        for level in ("exhaustive", ""):
            self.use(level)
            self.assertEqual({"test_inherited", "test_kept", "test_repeated"}, listed(marked()))

    def test_class_is_marked_with_what_it_inherits_and_its_base_is_not(self) -> None:
        self.use("gate")
        case = marked()
        base = case.__bases__[0]
        self.assertEqual(set(), listed(levels.exhaustive(REASON)(case)))
        self.assertEqual({"test_inherited"}, listed(base))

    def test_mark_that_does_not_apply_changes_nothing(self) -> None:
        self.use("gate")
        self.assertIn("test_repeated", listed(marked(when=False)))

    def test_no_share_has_what_the_gate_does_not_install(self) -> None:
        self.use("gate", "1/1")
        self.assertIn("test_kept", listed(levels.exhaustive(REASON)(marked())))
        self.assertEqual(set(), listed(levels.exhaustive(REASON, share=False)(marked())))

    def test_every_repetition_is_in_exactly_one_share(self) -> None:
        found = []
        for number in range(SHARES):
            self.use("gate", f"{number + 1}/{SHARES}")
            found += [name for name in map(str, range(100)) if levels.chosen(name)]
        self.assertEqual(sorted(map(str, range(100))), sorted(found))

    def test_share_that_there_is_not_is_refused(self) -> None:
        for share in ("0/5", "6/5"):
            self.use("gate", share)
            self.assertRaises(ValueError, levels.chosen, "one")

    def test_reason_is_required(self) -> None:
        self.assertRaises(ValueError, levels.exhaustive, "")

    def test_exhaustive_level_takes_the_points_that_change_the_effects(self) -> None:
        self.use("exhaustive")
        self.assertEqual([1, 3, 6],
                         levels.points([None, "record", None, "container", "record", None, "device"]))

    def test_point_of_the_gate_has_its_turn(self) -> None:
        effects = [None, "record", None, "container", "device"]
        found = set()
        for number in range(SHARES):
            self.use("gate", f"{number + 1}/{SHARES}")
            found.update(levels.points(effects))
        self.assertEqual({1, 3, 4}, found)

    def test_each_item_has_its_turn(self) -> None:
        found = []
        for number in range(SHARES):
            self.use("gate", f"{number + 1}/{SHARES}")
            found.append(levels.turn("abc"))
        self.assertEqual(list("aabbc"), found)
        self.use("")
        self.assertEqual("a", levels.turn("abc"))

    def test_budgets(self) -> None:
        for level, expected in (("gate", 20), ("exhaustive", 300), ("", 20)):
            self.use(level)
            self.assertEqual(expected, levels.budget(gate=20, exhaustive=300))

    def test_gate_takes_some_items_and_its_share(self) -> None:
        items = [f"item{number}" for number in range(40)]
        self.use("gate")
        self.assertEqual(["item3", "item7"], levels.some("list", items, (3, 7)))
        found: set[str] = set()
        for number in range(SHARES):
            self.use("gate", f"{number + 1}/{SHARES}")
            found.update(levels.some("list", items, ()))
        self.assertEqual(set(items), found)
        self.use("exhaustive")
        self.assertEqual(items, levels.some("list", items, ()))

    def test_some_tests_of_a_class_are_marked(self) -> None:
        self.use("gate")

        class Both(testtools.TestCase):
            def test_one(self) -> None: ...

            def test_two(self) -> None: ...

        marked = levels.exhaustive("another engine has it", tests=("test_two",))(Both)
        self.assertEqual(["test_one"], unittest.defaultTestLoader.getTestCaseNames(marked))
        self.assertRaises(ValueError, levels.exhaustive("another engine has it", tests=("test_three",)), Both)
