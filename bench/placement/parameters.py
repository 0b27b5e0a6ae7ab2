# SPDX-License-Identifier: Apache-2.0
"""Keep the parameters of the simulated cluster, and say where each comes from."""

import dataclasses
import json
import pathlib

from bench.placement.contention import Efficiency, Machine
from bench.placement.hpcc import Calibration

PATH = pathlib.Path(__file__).with_name("parameters.json")


@dataclasses.dataclass(frozen=True)
class Parameters:
    """Hold the parameters that ``fit`` finds.

    :ivar calibration: measured with hpcc
    :ivar seconds: length of a job; fitted to the makespan of "affinity"
    :ivar efficiency: fitted to the ten CPU-bound jobs
    :ivar core_messages: GB/s of a rank; fitted to the makespan of Volcano
    """

    calibration: Calibration
    seconds: float
    efficiency: Efficiency
    core_messages: float

    @property
    def machine(self) -> Machine:
        """Return the cluster with these rates."""
        return Machine(core_memory=self.calibration.stream_gbytes, core_messages=self.core_messages)


def load(path: pathlib.Path = PATH) -> Parameters:
    """Return what ``save`` wrote."""
    values = json.loads(path.read_text(encoding="utf-8"))
    return Parameters(Calibration(**values["calibration"]), values["seconds"], Efficiency(**values["efficiency"]),
                      values["core_messages"])


def save(parameters: Parameters, path: pathlib.Path = PATH) -> None:
    """Write the parameters, for ``load``."""
    path.write_text(json.dumps(dataclasses.asdict(parameters), indent=1) + "\n", encoding="utf-8")
