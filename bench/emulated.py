# SPDX-License-Identifier: Apache-2.0
"""Where the benchmarks run: on an emulated host, with this repository first in the path. Imports nothing of nova."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
sys.path.insert(0, str(REPOSITORY))
if str(HERE) in sys.path:  # of a program in it; last, because bench/placement is not OpenStack's Placement
    sys.path.remove(str(HERE))
    sys.path.append(str(HERE))
os.environ.setdefault("OS_NOVA_DISABLE_EVENTLET_PATCHING", "1")


def options(description: str | None, **numbers: int) -> argparse.Namespace:
    """Parse the command line: a number for each of ``numbers``, whose defaults these are, and ``--json``."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def enter() -> None:
    """Go on under tools/fakehost, unless this already runs there."""
    if "FAKEHOST_CONTROL" not in os.environ:
        tool = REPOSITORY / "tools" / "fakehost"
        command = [sys.executable, str(tool), "--host", "small", "--", sys.executable, *sys.argv]
        os.execv(sys.executable, command)


def installed(extra: str) -> Path:
    """Install this repository as an operator does it, with nothing beside, and return its commands' directory.

    In a checkout's own virtual environment each start of Python takes twice as long. To be called before :func:`enter`,
    where there is no network.

    :returns: the directory of its commands
    """
    home = REPOSITORY / ".cache/bench" / extra
    if "FAKEHOST_CONTROL" not in os.environ:
        print(f"installing nova-lxd-ext[{extra}] in {home}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
        subprocess.run([home / "bin/pip", "install", "--quiet", "--disable-pip-version-check", "--constraint",
                        str(REPOSITORY / "constraints.txt"), f"{REPOSITORY}[{extra}]"], check=True)
    return home / "bin"
