# SPDX-License-Identifier: Apache-2.0
"""Run ``containerhost selftest`` on the cloud's engine, on devices that no server has."""

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from containerhost.operator.selftest.steps import Outcome
from tools.cloud.cloud import Cloud
from tools.cloud.engine import POOL
from tools.showcase.report import Report

CONTAINERHOST = str(Path(sys.executable).with_name("containerhost"))
TIMEOUT = 300  # s
LAST = "second hand-over"


def run(cloud: Cloud, report: Report, options: Sequence[str]) -> None:
    """Run it and note each of its steps as a fact.

    :param options: name the devices
    """
    engine = cloud.engine
    words = ["selftest", "--engine", f"{engine.flavour.name.lower()}={engine.socket}", "--pool", POOL, *options]
    report.command(f"containerhost {shlex.join(words)}")
    with report.timed("self-test"):
        done = subprocess.run(
            [CONTAINERHOST, *words, "--owners", str(cloud.owners), "--output", str(cloud.layout.run / "selftest.json"),
             "--json"], text=True, capture_output=True, timeout=TIMEOUT, check=False)
    note(report, json.loads(done.stdout or '{"steps": []}')["steps"], done.stderr.strip())


def note(report: Report, steps: Sequence[Mapping[str, Any]], error: str) -> None:
    """Note the steps, and that the last one was reached.

    :param error: what the command wrote about an error
    """
    for step in steps:
        found = f"{step['outcome']} in {step['seconds']} s: {step['detail']}"
        if step["step"] == "doctor":  # it judges the host as a whole, and machines of demos lack memory locks
            report.say(f"doctor: {found}")
        else:
            report.check("self-test", step["step"], found, step["outcome"] != Outcome.FAILED)
    reached = any(step["step"] == LAST for step in steps)
    report.check("self-test", "runs to its end", error or ("yes" if reached else "no"), reached)
