# SPDX-License-Identifier: Apache-2.0
"""Read the sandboxes of the units in etc/systemd, and run commands in what can be had of them without systemd."""

import sys
from pathlib import Path

DIRECTORY = Path(__file__).parents[1] / "etc/systemd"
UNITS = sorted(DIRECTORY.glob("*.service"))
NOBODY = "65534"
# prctl(2), PR_SET_MDWE: what follows cannot make memory executable. Linux 6.3 and later; others ignore it.
NO_NEW_CODE = "import ctypes, os, sys; ctypes.CDLL(None).prctl(65, 1, 0, 0, 0); os.execvp(sys.argv[1], sys.argv[1:])"


def options(name: str) -> dict[str, str]:
    """Return the options of a unit; of one that stands several times, the last value.

    :param name: without ``.service``
    """
    lines = (DIRECTORY / f"{name}.service").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def confined(name: str) -> tuple[str, ...]:
    """Return the words before a command that leave it the user and the capabilities of a unit, and no others.

    :param name: without ``.service``
    """
    known = options(name)
    bounds, ambient = known["CapabilityBoundingSet"], known.get("AmbientCapabilities", "")
    words = [sys.executable, "-c", NO_NEW_CODE] if known.get("MemoryDenyWriteExecute") == "yes" else []
    words += ["setpriv", "--bounding-set", _listed(bounds)]
    if known.get("NoNewPrivileges") == "yes":
        words.append("--no-new-privs")
    if known.get("DynamicUser") == "yes":
        words += [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    if ambient:
        words += ["--inh-caps", _listed(ambient), "--ambient-caps", _listed(ambient)]
    return tuple(words)


def _listed(value: str) -> str:
    """Return a list of capabilities in setpriv's words."""
    names = [name.removeprefix("CAP_").lower() for name in value.removeprefix("~").split()]
    return ",".join(f"-{name}" for name in names) if value.startswith("~") else ",+".join(["-all", *names])
