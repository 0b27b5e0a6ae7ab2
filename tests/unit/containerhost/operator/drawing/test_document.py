# SPDX-License-Identifier: Apache-2.0
"""The map of a host as JSON: it comes back as it was, and nothing else comes back."""

import copy
import json
from typing import Any
from xml.etree import ElementTree

import testtools
from hypothesis import given, settings
from hypothesis import strategies as st

from containerhost.operator.drawing import document, svg, text
from containerhost.operator.drawing.hostreader import read_map
from tests import levels
from tests.unit.containerhost.hosts import shared
from tests.unit.containerhost.operator.drawing.test_drawing import Busy

ODD = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.integers(), max_size=3),
                st.dictionaries(st.text(max_size=3), st.integers(), max_size=2))


def as_json(name: str = "mixed") -> Any:
    return json.loads(json.dumps(document.dump(read_map(shared(name), {}))))


def leaves(raw: Any) -> list[tuple[Any, Any]]:
    """Return each place of a document: a list or an object, and the index or key in it."""
    inside = list(enumerate(raw)) if isinstance(raw, list) else list(raw.items()) if isinstance(raw, dict) else []
    return [(raw, key) for key, _ in inside] + [place for _, value in inside for place in leaves(value)]


class DocumentTest(testtools.TestCase):
    def test_map_comes_back(self) -> None:
        busy = self.useFixture(Busy())
        for found in (busy.map(), *(read_map(shared(name), {}) for name in ("small", "mixed", "broken", "fabrics"))):
            self.assertEqual(found, document.load(json.loads(json.dumps(document.dump(found)))))

    def test_fields_of_other_releases_are_ignored(self) -> None:
        raw = as_json()
        raw["nodes"][0]["color"] = "red"
        self.assertEqual(read_map(shared("mixed"), {}), document.load(raw))

    def test_map_of_a_newer_release_is_refused(self) -> None:
        raw = as_json()
        raw["version"] = document.VERSION + 1
        self.assertIn(f"its version is {document.VERSION + 1}", str(self.assertRaises(ValueError, document.load, raw)))

    def test_control_characters_and_halves_of_letters_are_replaced(self) -> None:
        raw = as_json()
        raw["title"] = "a\x1b[2J\ud800\x00"
        found = document.load(raw)
        self.assertEqual("a?[2J??", found.title)
        ElementTree.fromstring(svg.draw(found))

    def test_wrong_values_are_refused_with_the_field(self) -> None:
        for path, value, field in (
                (("title",), None, "HostMap.title"), (("title",), "x" * (document.LONGEST + 1), "HostMap.title"),
                (("nodes",), {}, "HostMap.nodes"), (("nodes", 0), 3, "Node"),
                (("nodes", 0, "memory"), -1, "Node.memory"),
                (("nodes", 0, "memory"), True, "Node.memory"), (("nodes", 0, "memory"), 1.5, "Node.memory"),
                (("nodes", 0, "memory"), 1 << 63, "Node.memory"),
                (("nodes", 0, "cores", 0, "threads", 0), [1], "Core.threads"),
                (("nodes", 0, "groups", 0, "cards", 0, "kind"), [], "Card.kind"),
                (("nodes", 0, "groups", 0, "cards", 0, "status"), "fine", "fine")):
            raw = as_json()
            place = raw
            for step in path[:-1]:
                place = place[step]
            place[path[-1]] = value
            with self.subTest(path=path, value=str(value)[:20]):
                self.assertIn(field, str(self.assertRaises(ValueError, document.load, raw)))

    @settings(max_examples=levels.budget(gate=80, exhaustive=200), deadline=None)
    @given(st.data())
    def test_whatever_is_written_is_drawn_or_refused(self, data: st.DataObject) -> None:
        raw = copy.deepcopy(as_json("small"))
        place, key = data.draw(st.sampled_from(leaves(raw)))
        place[key] = data.draw(ODD)
        try:
            found = document.load(raw)
        except ValueError:
            return
        ElementTree.fromstring(svg.draw(found))
        text.write(found)
