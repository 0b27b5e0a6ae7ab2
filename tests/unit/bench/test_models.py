# SPDX-License-Identifier: Apache-2.0
import pathlib

import testtools

from bench.placement import contention, fit, hpcc, parameters
from bench.placement.contention import Efficiency, Flow, Machine
from bench.placement.loop import Request
from bench.placement.workloads import Benchmark

SUMMARY = """noise=1
Begin of Summary section.
VersionMajor=1
LANG=C
CommWorldProcs=2
SingleDGEMM_Gflops={dgemm}
StarDGEMM_Gflops=9
SingleSTREAM_Triad=20
StarSTREAM_Triad={star}
SingleFFT_Gflops=2
StarFFT_Gflops=2.5
PTRANS_GBs=1.5
RandomlyOrderedRingBandwidth_GBytes=8
RandomlyOrderedRingLatency_usec={latency}
MPIFFT_time0=9
MPIFFT_time1=1
MPIFFT_time2=2
MPIFFT_time3=1
MPIFFT_time4=3
MPIFFT_time5=1
MPIFFT_time6=9
End of Summary section.
after=1
"""


class HpccTest(testtools.TestCase):
    def write(self, text: str) -> pathlib.Path:
        from fixtures import TempDir
        path = pathlib.Path(self.useFixture(TempDir()).path) / "hpccoutf.txt"
        path.write_text(text)
        return path

    def test_best_of_the_runs(self) -> None:
        found = hpcc.read([self.write(SUMMARY.format(dgemm=10, star=10, latency=0.5)),
                           self.write(SUMMARY.format(dgemm=8, star=15, latency=0.25))])
        self.assertEqual((2, 10.0, 0.9, 20.0, 0.75), (found.ranks, found.dgemm_gflops, found.dgemm_star,
                                                      found.stream_gbytes, found.stream_star))
        self.assertEqual((1.0, 0.375, 8.0, 0.25), (found.fft_star, found.fft_messages, found.ring_gbytes,
                                                   found.ring_latency_us))

    def test_refused_with_what_is_missing(self) -> None:
        whole = SUMMARY.format(dgemm=10, star=10, latency=1)
        for text, words in (("", "no whole summary"), (whole.split("End of")[0], "its run did not end"),
                            (whole.replace("PTRANS", "OTHER"), "no PTRANS_GBs")):
            self.assertIn(words, str(self.assertRaises(ValueError, hpcc.read, [self.write(text)])))
        self.assertIn("no output of hpcc", str(self.assertRaises(ValueError, hpcc.read, [])))

    def test_parameters_of_the_tree_are_read(self) -> None:
        found = parameters.load()
        self.assertEqual(found.calibration.stream_gbytes, found.machine.core_memory)
        path = self.write("")
        parameters.save(found, path)
        self.assertEqual(found, parameters.load(path))


class EfficiencyTest(testtools.TestCase):
    def test_by_the_cores_of_a_rank(self) -> None:
        known = Efficiency(floating=1.0, part=2.0, single=3.0)
        self.assertEqual([1.0, 1.0, 2.0, 3.0], [known.of(request) for request in (
            Request((16,), affinity=False), Request((16,)), Request((4,) * 4, 4), Request((1,) * 16, 4))])

    def test_fitted_to_the_cpu_bound_jobs(self) -> None:
        found = fit.efficiency()
        self.assertAlmostEqual(0.95, 1 / found.part)
        self.assertAlmostEqual(0.85, 1 / found.single)
        self.assertAlmostEqual(0.74, 0.95 * found.floating)


class ContentionTest(testtools.TestCase):
    machine = Machine(core_memory=10.0, socket_cores=4.0, core_messages=5.0)

    def test_time_of_a_job_on_one_socket(self) -> None:
        for kind, expected in ((Benchmark("", "", compute=1.0), 1.0), (Benchmark("", "", memory=1.0), 4.0),
                               (Benchmark("", "", compute=0.5, memory=0.5), 2.5),
                               (Benchmark("", "", messages=1.0), 2.0)):
            self.assertEqual(expected, contention.alone(kind, self.machine))

    def test_memory_of_the_socket_or_of_all(self) -> None:
        places = [("n1", 0), ("n2", 1)]
        self.assertEqual([Flow(("n1", 0), ("n1", 0), 8.0, 10.0), Flow(("n2", 1), ("n2", 1), 8.0, 10.0)],
                         contention.memory_flows(places, 8.0, 10.0))
        floating = contention.memory_flows(places, 8.0, 5.0, (0, 1))
        self.assertEqual(16.0, sum(flow.gbytes for flow in floating))
        self.assertEqual([("n1", 0), ("n1", 1), ("n2", 0), ("n2", 1)], [flow.source for flow in floating])
        self.assertEqual((10.0, 5.0), contention.rates(Request((16,)), self.machine))
        self.assertEqual((5.0, 5.0), contention.rates(Request((16,), affinity=False), self.machine))

    def test_each_rank_sends_and_receives_once(self) -> None:
        places = [("n1", 0)] * 2 + [("n2", 0)] * 2
        for all_to_all in (False, True):
            for step in range(20):
                flows = contention.message_flows(places, 1.0, 5.0, all_to_all, step)
                self.assertEqual(places, sorted(flow.source for flow in flows))
                self.assertEqual(places, sorted(flow.target for flow in flows))

    def test_pairs_change_with_the_step(self) -> None:
        places = [(f"n{at}", 0) for at in range(8)]
        for all_to_all in (False, True):
            pairs = {tuple(flow.target for flow in sorted(contention.message_flows(places, 1.0, 5.0, all_to_all, step),
                                                          key=lambda flow: flow.source)) for step in range(5)}
            self.assertGreater(len(pairs), 1)
