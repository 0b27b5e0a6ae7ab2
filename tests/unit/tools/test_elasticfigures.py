# SPDX-License-Identifier: Apache-2.0
"""Test the tables and the plot of the elastic story."""

from typing import Any
from xml.etree import ElementTree

import testtools

from tools.showcase import elasticfigures

NAMES = ("openmp", "pytorch", "lammps")
CORES = 2


def trade(alone: float, together: float, busy: float) -> dict[str, Any]:
    """Return what three servers did, first the first one alone, then each pair, in turns of ten seconds.

    :param alone, together: steps a second of each
    :param busy: cores that each kept busy beside another
    """
    turns = []
    for number, working in enumerate((("openmp",), ("openmp", "pytorch"), ("pytorch",), ("pytorch", "lammps"),
                                      ("lammps",), ("lammps", "openmp"))):
        rate = alone if len(working) == 1 else together
        turns.append({"began": 10.0 * number, "seconds": 10.0, "servers": {
            name: {"cores": 1, "parts": 1, "rate": rate, "cpu": 10 * busy} for name in working}})
    return {"seconds": 60.0, "turns": turns, "timeline": [(0.0, {"openmp": 2}), (60.0, {})],
            "steps": dict.fromkeys(NAMES, 600), "cpu": dict.fromkeys(NAMES, 20.0)}


TRADES = {"fixed": trade(10, 10, 1), "rigid": trade(20, 2, 1), "following": trade(20, 9, 1)}
FINISH = {way: {"jobs": {name: {"ended": 30.0 + index} for index, name in enumerate(NAMES)}, "makespan": 60.0,
                "mean_time_to_finish": 31.0, "utilisation": 0.75, "timeline": [(0.0, {"lammps": 1}), (60.0, {})]}
          for way in ("static", "elastic")}


class FiguresTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.found = elasticfigures.figures(TRADES, FINISH, CORES)

    def test_work_after_a_shrink_is_compared_with_a_fixed_server(self) -> None:
        after = {kind: each["after_a_shrink"] for kind, each in self.found["trades"].items()}
        self.assertEqual({"fixed": dict.fromkeys(NAMES, 1.0), "rigid": dict.fromkeys(NAMES, 0.2),
                          "following": dict.fromkeys(NAMES, 0.9)}, after)

    def test_less_cpu_time_for_the_same_work_is_better(self) -> None:
        trades = {**TRADES, "following": trade(20, 9, 0.5)}
        after = elasticfigures.figures(trades, FINISH, CORES)["trades"]["following"]["after_a_shrink"]
        self.assertEqual(dict.fromkeys(NAMES, 1.8), after)

    def test_throughput_is_in_fixed_servers_and_utilisation_in_cores(self) -> None:
        fixed = self.found["trades"]["fixed"]
        self.assertEqual((3.0, 0.5), (fixed["throughput"], fixed["utilisation"]))
        self.assertEqual(dict.fromkeys(NAMES, 2.0), self.found["trades"]["following"]["alone"])

    def test_tables_have_a_row_for_each_kind_and_way(self) -> None:
        lines = elasticfigures.tables(self.found, FINISH).splitlines()
        first = [line.split(" | ")[0] for line in lines]
        self.assertEqual(["| servers", "| ---", "| fixed", "| rigid", "| following", "",
                          "| allocation", "| ---", "| static", "| elastic"], first)
        self.assertEqual({line.count("|") for line in lines[:5]}, {lines[0].count("|")})

    def test_plot_shows_cores_of_each_server(self) -> None:
        drawn = ElementTree.fromstring(elasticfigures.plot({"cores": CORES, "trades": TRADES, "finish": FINISH}))
        words = [each.text for each in drawn.iter("{http://www.w3.org/2000/svg}text")]
        for name in (*NAMES, "fixed", "rigid", "following", "static", "elastic"):
            self.assertTrue(any(name in (word or "") for word in words), name)
