# SPDX-License-Identifier: Apache-2.0
"""Test the NVML paths, with pynvml's own loader and structures, on the library that NVIDIA builds for such tests.

It has GPUs, their health, use and links, and lets them fail. It has no slices: ``tests/fakehost/nvml`` emulates those.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fixtures
import testtools
import yaml

MOCK = Path(os.environ["MOCK_NVML"])
PROFILES = MOCK / "configs"
HOST_GPUS = ("0000:3b:00.0", "0000:af:00.0")  # of the described host "small"
TIMEOUT = 300  # s


def profile(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((PROFILES / f"mock-nvml-config-{name}.yaml").read_text()))


class NvmlTest(testtools.TestCase):
    def run_python(self, config: dict[str, Any], *words: str) -> str:
        file = Path(self.useFixture(fixtures.TempDir()).path) / "config.yaml"
        file.write_text(json.dumps(config))
        return subprocess.run(
            [sys.executable, "-W", "ignore", *words], text=True, timeout=TIMEOUT, check=True, stdout=subprocess.PIPE,
            env={**os.environ, "LD_LIBRARY_PATH": str(MOCK), "MOCK_NVML_CONFIG": str(file)}).stdout

    def report(self, config: dict[str, Any], addresses: tuple[str, ...] = HOST_GPUS) -> dict[str, Any]:
        return dict(json.loads(self.run_python(config, "-m", "tests.mocknvml.report", *addresses)))

    def host(self, *changes: dict[str, Any], **common: Any) -> dict[str, Any]:
        """Return a configuration with the GPUs of the described host.

        :param changes: of each GPU; the mock takes failures and the fabric so
        :param common: of all GPUs
        """
        found = profile("a100")
        found["system"] |= {"num_devices": len(HOST_GPUS)}
        found["device_defaults"] |= common
        found["devices"] = [{"index": index, "uuid": f"GPU-{index}", "minor_number": index, "pci": {"bus_id": address},
                             **(changes[index] if index < len(changes) else {})}
                            for index, address in enumerate(HOST_GPUS)]
        return found

    def test_each_profile_is_read_and_well(self) -> None:
        names = sorted(path.stem.rpartition("-")[2] for path in PROFILES.glob("*.yaml"))
        self.assertIn("h100", names)
        for name in names:
            config = profile(name)
            wanted = {device["pci"]["bus_id"].lower(): device["uuid"] for device in config["devices"]}
            found = self.report(config, tuple(wanted))
            model, memory = config["device_defaults"]["name"], config["device_defaults"]["memory"]["total_bytes"]
            self.assertEqual({address: (uuid, model, memory) for address, uuid in wanted.items()},
                             {address: (gpu["uuid"], gpu["model"], gpu["memory"])
                              for address, gpu in found["nvml"].items()}, name)
            for gpu in found["nvml"].values():
                self.assertEqual((None, None, False, False), tuple(
                    gpu["state"][key] for key in ("lost", "unknown", "mismatched", "remap_failed")), name)
            self.assertEqual(([], list(range(len(wanted)))),
                             (found["links"], sorted(use["number"] for use in found["usage"].values())), name)

    def test_scan_has_memory_and_use_of_it(self) -> None:
        found = self.report(self.host())
        for address in HOST_GPUS:
            gpu = found["gpus"][address]
            self.assertEqual((40 << 30, [], []), (gpu["memory"], gpu["health"], gpu["notes"]))
            self.assertEqual((0, 72.0), (found["usage"][address]["busy"], found["usage"][address]["power"]))

    def test_links_of_two_gpus_without_a_switch(self) -> None:
        config = self.host()
        config["nvlink"] = {"version": 3, "links_per_gpu": 4, "device_links": [
            {"index": index, "links": [{"link": link, "state": "active", "remote_device_type": "gpu",
                                        "remote_pci_bus_id": HOST_GPUS[1 - index], "remote_index": 1 - index}
                                       for link in range(4)]} for index in range(2)]}
        self.assertEqual([[*HOST_GPUS, 4]], self.report(config)["links"])

    def test_lost_gpu_is_sick_and_the_other_one_is_not(self) -> None:
        found = self.report(self.host({}, {"failure": {"mode": "fallen_off_bus"}}))["gpus"]
        self.assertEqual([], found[HOST_GPUS[0]]["health"])
        self.assertIn("NVML cannot reach it", " ".join(found[HOST_GPUS[1]]["health"]))

    def test_gpu_that_is_lost_in_the_middle_of_a_query_is_sick(self) -> None:
        for calls in (2, 5):  # while its use, and while its health is read
            first = self.report(self.host({"failure": {"mode": "lost", "after_calls": calls}}))["nvml"][HOST_GPUS[0]]
            self.assertIsNotNone(first["state"]["lost"], (calls, first))

    def test_memory_errors(self) -> None:
        config = self.host({"failure": {"mode": "ecc_uncorrectable"}}, remapped_rows={"pending": True})
        found = self.report(config)["gpus"]
        sick, other = (found[address] for address in HOST_GPUS)
        for words in ("uncorrected memory errors", "could not be remapped"):
            self.assertIn(words, " ".join(sick["health"]))
        self.assertEqual([], other["health"])
        self.assertIn("remapped at its next reset", " ".join(other["notes"]))

    def test_gpus_that_have_not_joined_the_fabric_are_sick(self) -> None:
        found = self.report(self.host({"fabric": {"state": "in_progress"}}, {"fabric": {"state": "completed"}}))["gpus"]
        self.assertIn("has not joined the NVLink fabric (in progress)", " ".join(found[HOST_GPUS[0]]["health"]))
        self.assertEqual([], found[HOST_GPUS[1]]["health"])

    def test_older_drivers_lack_functions(self) -> None:
        for version in ("450.51.06", "470.256.02"):
            config = self.host()
            config["system"]["driver_version"] = version
            found = self.report(config)["gpus"]
            self.assertEqual([[], []], [found[address]["health"] for address in HOST_GPUS], version)

    def test_partitions(self) -> None:
        """The mock has GPUs in MIG mode, but neither profiles nor slices."""
        config = self.host(mig={"mode_current": "enabled", "mode_pending": "enabled", "max_gpu_instances": 7})
        text = self.run_python(config, "-c", "from containerhost.operator.cli import main; main()", "mig", "show",
                               "--json", "--owners", self.useFixture(fixtures.TempDir()).path)
        self.assertEqual([(address, True, []) for address in HOST_GPUS],
                         [(gpu["address"], gpu["enabled"], gpu["slices"]) for gpu in json.loads(text)])
        for gpu in self.report(config)["gpus"].values():
            self.assertIn("MIG mode is on and it has no slices", " ".join(gpu["health"]))
