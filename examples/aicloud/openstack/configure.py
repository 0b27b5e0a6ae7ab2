#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Print the configuration by which isvctl runs the steps of a suite of steps.yaml, such as: configure.py vm"""

import argparse
import json
from pathlib import Path
from typing import Any

import yaml

DIRECTORY = Path(__file__).resolve().parent
SUITES = yaml.safe_load((DIRECTORY / "steps.yaml").read_text())
TIMEOUT = 1200  # s, for one step
# Neutron gives a public address to a port, not to all of a subnet.
CHECKS = {"network": {"network": {"checks": {"VpcIpConfigCheck": {"auto_assign_ip_mode": "instance"}}}}}


def configuration(suite: str) -> dict[str, Any]:
    phases = SUITES[suite]
    steps = [step(phase, entry) for phase, entries in phases.items() for entry in entries]
    return {"commands": {suite.replace("-", "_"): {"phases": [*phases], "steps": steps}},
            "tests": {"validations": CHECKS.get(suite, {})}}


def step(phase: str, entry: str | dict[str, dict[str, str]]) -> dict[str, Any]:
    ((function, arguments),) = ({entry: {}} if isinstance(entry, str) else entry).items()
    module, _, name = function.partition(".")
    words = [word for key, field in arguments.items() if key != "as" for word in (f"--{key}", f"{{{{steps.{field}}}}}")]
    return {"name": arguments.get("as", name), "phase": phase, "continue_on_failure": True, "timeout": TIMEOUT,
            "command": f"python {DIRECTORY}/scripts/{module}.py {name}", "args": words, "sensitive_args": ["--secret"]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", choices=SUITES)
    print(json.dumps(configuration(parser.parse_args().suite), indent=1))
