# SPDX-License-Identifier: Apache-2.0
"""Test `containerhost selftest` on a GPU and a function of the machine, which real drivers run."""

import json
import subprocess
import sys
from pathlib import Path

import fixtures

from containerhost.devices.model import Kind
from containerhost.inventory.scan import scan
from tests.functional import lxd
from tests.vm.containers import InContainers
from tests.vm.hardware import RealDevices

COMMAND = "from containerhost.operator.cli import main; main()"  # nothing is installed in the guest
TIMEOUT = 1800  # s; without KVM it is slow


class SelfTestOfRealDevices(InContainers, RealDevices):
    def test_every_step(self) -> None:
        gpu = next(device for device in scan().devices if device.kind is Kind.GPU)
        vf = self.vfs[0]
        output = Path(self.useFixture(fixtures.TempDir()).path) / "selftest.json"
        done = subprocess.run(
            [sys.executable, "-c", COMMAND, "selftest", "--json", "--engine", f"lxd={self.lxd.daemon.socket}",
             "--pool", lxd.POOL, "--owners", str(self.store.directory), "--gpu", gpu.id, "--vf", vf.id,
             "--output", str(output)],
            capture_output=True, text=True, timeout=TIMEOUT, check=False)
        rows = {row["step"]: row for row in json.loads(done.stdout or "{}").get("steps", ())}
        doctor = rows.pop("doctor", {"outcome": None})["outcome"]
        each = [step.format(device.id) for step in ("take {} while it runs", "give {} while it runs")
                for device in (gpu, vf)]
        held = f"take {gpu.id} from a process that has it open"
        self.assertEqual(dict.fromkeys(["image", "give at boot", *each, held, "clean when the container has ended",
                                        "second hand-over", "clean up"], "passed"),
                         {step: row["outcome"] for step, row in rows.items()}, (done.stderr, rows))
        self.assertEqual(1 if doctor == "failed" else 0, done.returncode)
        self.assertIn("clean: ", rows[held]["detail"])  # after a rebind of its driver, the process has no GPU
        self.assertEqual(rows.keys() | {"doctor"}, {row["step"] for row in json.loads(output.read_text())["steps"]})
        self.assert_free(vf)
        self.assertEqual({}, self.store.records())
