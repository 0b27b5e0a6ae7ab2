# SPDX-License-Identifier: Apache-2.0
"""Tables of geometries, wishes and what comes of them. The profiles are an A100's (MIG user guide)."""

import dataclasses
import random

import testtools

from containerhost.errors import DeviceHeld, SpecError
from containerhost.vendors.nvidia.mig import wanted
from containerhost.vendors.nvidia.mig.geometry import ComputeInstance, Geometry, GpuInstance, Piece, Placement, Profile
from containerhost.vendors.nvidia.mig.plan import Add, AddPart, Remove, RemovePart, SetMode, plan
from tests.fakehost.nvml import A100

GPU = "0000:3b:00.0"
PROFILES = tuple(Profile(kind.id, kind.name, kind.slices, kind.memory, kind.most, None,
                         tuple(Placement(start, kind.size) for start in kind.starts)) for kind in A100)
SIZES = {profile.name: profile.placements[0].size for profile in PROFILES}
WHOLE = {profile.name: profile.slices for profile in PROFILES}
OFF = Geometry(GPU, "A100", False, False, tuple(dataclasses.replace(profile, placements=()) for profile in PROFILES))


def cut(*instances: tuple[int, str, tuple[int, ...]]) -> Geometry:
    """Return the geometry of instances 1, 2, …: start, profile, compute slices of the parts; none is one part."""
    return Geometry(GPU, "A100", True, True, PROFILES, tuple(
        GpuInstance(number, name, Placement(start, SIZES[name]), tuple(
            ComputeInstance(index, slices) for index, slices in enumerate(parts or (WHOLE[name],))))
        for number, (start, name, parts) in enumerate(instances, 1)))


def done(geometry: Geometry, names: list[str], held: tuple[str, ...] = ()) -> list[str]:
    pieces = wanted.pieces(geometry, names)
    return [str(step) for step in plan(geometry, pieces, {f"{GPU}/{name}" if name else GPU for name in held}).steps]


class PiecesTest(testtools.TestCase):
    def test_parts_fill_gpu_instances(self) -> None:
        for names, expected in (
                (["1g.5gb"] * 2, [Piece("1g.5gb", (1,))] * 2),
                (["1c.2g.10gb"] * 3, [Piece("2g.10gb", (1, 1)), Piece("2g.10gb", (1,))]),
                (["2c.3g.20gb", "2c.3g.20gb", "1c.3g.20gb"], [Piece("3g.20gb", (1, 2)), Piece("3g.20gb", (2,))]),
                (["2c.2g.10gb"], [Piece("2g.10gb", (2,))]),
                (["1g.5gb+me"], [Piece("1g.5gb+me", (1,))]), ([], [])):
            with self.subTest(names):
                self.assertEqual(tuple(expected), wanted.pieces(cut(), names))

    def test_what_no_gpu_of_this_kind_can_have(self) -> None:
        for names, words in ((["1g.6gb"], "cannot have a slice 1g.6gb: it can have 1g.5gb, "),
                             (["3c.2g.10gb"], "3 of 2"),
                             (["1g.5gb"] * 8, "has 7 compute slices"), (["1g.5gb+me"] * 2, "can have 1 GPU instances"),
                             (["4g.20gb", "4g.20gb"], "need 8")):
            with self.subTest(names):
                self.assertIn(words, str(self.assertRaises(SpecError, wanted.pieces, cut(), names)))

    def test_lists(self) -> None:
        self.assertEqual({GPU: ("1g.5gb",)}, wanted.lists({GPU: ["1g.5gb"]}))
        for value in ("1g.5gb", {"a": "b"}, [["1g.5gb"]], ["1g"], ["1g.5gb; reboot"], ["1g.5gb"] * 65, ["1g.5gb\n"]):
            with self.subTest(value):
                self.assertRaises(SpecError, wanted.lists, {GPU: value})


class PlanTest(testtools.TestCase):
    def test_what_is_done(self) -> None:
        three = cut((0, "1g.5gb", ()), (1, "1g.5gb", ()), (4, "3g.20gb", ()))
        halves = cut((0, "2g.10gb", (1, 1)))
        for name, geometry, names, expected in (
                ("as wanted", three, ["3g.20gb", "1g.5gb", "1g.5gb"], []),
                ("whole already", OFF, [], []),
                ("one more", three, ["1g.5gb"] * 2 + ["3g.20gb", "2g.10gb"], ["make GPU instance 2g.10gb at 2"]),
                ("one less", three, ["1g.5gb", "3g.20gb"],
                 ["remove slice gi1/ci0 (1g.5gb)", "remove GPU instance gi1 (1g.5gb at 0)"]),
                ("whole again", cut((0, "1g.5gb", ())), [],
                 ["remove slice gi1/ci0 (1g.5gb)", "remove GPU instance gi1 (1g.5gb at 0)", "turn MIG mode off"]),
                ("mode only", cut(), [], ["turn MIG mode off"]),
                ("from whole", OFF, ["1g.5gb", "4g.20gb"],
                 ["turn MIG mode on", "make GPU instance 4g.20gb", "make GPU instance 1g.5gb"]),
                ("room must be made", cut((2, "1g.5gb", ()), (4, "3g.20gb", ())), ["1g.5gb", "4g.20gb"],
                 ["remove slice gi1/ci0 (1g.5gb)", "remove GPU instance gi1 (1g.5gb at 2)",
                  "remove slice gi2/ci0 (3g.20gb)", "remove GPU instance gi2 (3g.20gb at 4)",
                  "make GPU instance 4g.20gb at 0", "make GPU instance 1g.5gb at 4"]),
                ("half goes", halves, ["1c.2g.10gb"], ["remove slice gi1/ci1 (1c.2g.10gb)"]),
                ("halves to whole", halves, ["2g.10gb"], ["remove slice gi1/ci0 (1c.2g.10gb)",
                                                          "remove slice gi1/ci1 (1c.2g.10gb)",
                                                          "make slice 2g.10gb in gi1"])):
            with self.subTest(name):
                self.assertEqual(expected, done(geometry, names))

    def test_what_is_held_stays(self) -> None:
        three = cut((0, "1g.5gb", ()), (1, "1g.5gb", ()), (4, "3g.20gb", ()))
        self.assertEqual(["remove slice gi1/ci0 (1g.5gb)", "remove GPU instance gi1 (1g.5gb at 0)"],
                         done(three, ["1g.5gb", "3g.20gb"], ("gi2/ci0",)))
        halves = cut((0, "2g.10gb", (1, 1)))
        self.assertEqual(["remove slice gi1/ci0 (1c.2g.10gb)"], done(halves, ["1c.2g.10gb"], ("gi1/ci1",)))
        for geometry, names, held, words in (
                (three, ["1g.5gb", "1g.5gb"], ("gi3/ci0",), "gi3/ci0 would be removed"),
                (three, [], ("gi1/ci0",), "gi1/ci0 would be removed"), (OFF, ["1g.5gb"], ("",), "allocated as a whole"),
                (halves, ["2g.10gb"], ("gi1/ci0",), "would be removed")):
            self.assertIn(words, str(self.assertRaises(DeviceHeld, done, geometry, names, held)))
        self.assertEqual([], done(three, ["3g.20gb", "1g.5gb", "1g.5gb"], ("gi1/ci0", "gi3/ci0")))
        # The one that is held is where the larger one would have to be.
        error = self.assertRaises(SpecError, done, cut((2, "1g.5gb", ())), ["1g.5gb", "4g.20gb"], ("gi1/ci0",))
        self.assertIn("around the allocated slices (1g.5gb)", str(error))

    def test_a_mode_that_waits_for_a_reset(self) -> None:
        waiting = dataclasses.replace(OFF, pending=True)
        self.assertIn("turns MIG mode on at its next reset", str(self.assertRaises(SpecError, done, waiting, [])))

    def test_any_geometry_becomes_any_other(self) -> None:
        """Random ones, carried out by the rules of the hardware; what stays is not touched, and then nothing is left to
        do."""
        chance = random.Random(6)
        planned = 0
        for _ in range(400):
            first, names = self._random(chance), [name for _, name, _ in self._placed(chance)]
            target = wanted.pieces(first, names)
            steps = plan(first, target, ()).steps
            after = self._carried_out(first, steps)
            self.assertEqual(sorted(names), sorted(name for _, name, _ in after))
            if names:
                self.assertEqual((), plan(cut(*after), target, ()).steps)
            planned += bool(steps)
        self.assertGreater(planned, 200)

    def _random(self, chance: random.Random) -> Geometry:
        return cut(*self._placed(chance))

    @staticmethod
    def _placed(chance: random.Random) -> list[tuple[int, str, tuple[int, ...]]]:
        """Instances of whatever profile, wherever there is room for one."""
        found: list[tuple[int, str, tuple[int, ...]]] = []
        for _ in range(chance.randint(0, 7)):
            profile = chance.choice(PROFILES)
            place = chance.choice(profile.placements)
            taken = [Placement(start, SIZES[name]) for start, name, _ in found]
            if (not any(place.overlaps(other) for other in taken)
                    and sum(WHOLE[name] for _, name, _ in found) + profile.slices <= 7
                    and sum(name == profile.name for _, name, _ in found) < profile.most):
                found.append((place.start, profile.name, ()))
        return found

    def _carried_out(self, geometry: Geometry, steps: tuple[object, ...]) -> list[tuple[int, str, tuple[int, ...]]]:
        now = {one.id: (one.placement, one.profile, [part.id for part in one.parts]) for one in geometry.instances}
        for step in steps:
            match step:
                case RemovePart():
                    now[step.gi][2].remove(step.ci)
                case Remove():
                    self.assertEqual([], now.pop(step.gi)[2])
                case Add():
                    self.assertIsNotNone(step.placement)
                    self.assertFalse(any(step.placement.overlaps(other) for other, _, _ in now.values()), steps)
                    now[100 + len(now)] = (step.placement, step.profile, list(step.parts))
                case AddPart() | SetMode():
                    self.assertFalse(now if isinstance(step, SetMode) else isinstance(step, AddPart))
        return [(place.start, profile, ()) for place, profile, _ in now.values()]
