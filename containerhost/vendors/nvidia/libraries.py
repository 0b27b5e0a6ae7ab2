# SPDX-License-Identifier: Apache-2.0
"""Bring the libraries of NVIDIA's driver into a container that Docker starts: Docker 20.10 has no CDI.

Like NVIDIA's container toolkit, a hook before the container's first program (OCI runtime specification, "Prestart")
runs nvidia-container-cli with the container's process and root directory. It brings no nodes, which the grant
contains. This file is also the hook's program, which needs only Python.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

TOOL = "nvidia-container-cli"
TIMEOUT = 60  # s
# By default the tool mounts the CUDA libraries of the image, and follows the image's links as the host's root
# (CVE-2024-0132, CVE-2025-23359). 1.17.4 has the second option; later versions replaced it.
NO_IMAGE_LIBRARIES = ("--cuda-compat-mode=disabled", "--no-cntlibs")


def hook(capabilities: Collection[str]) -> dict[str, Any]:
    """Return an OCI hook.

    :raises FileNotFoundError: the tool is not installed
    """
    if shutil.which(TOOL) is None:
        raise FileNotFoundError(f"the libraries of the GPU's driver ({', '.join(sorted(capabilities))}) are "
                                f"requested, but this host has no {TOOL}: install NVIDIA's container toolkit")
    return {"path": sys.executable, "args": [sys.executable, "-I", __file__, *sorted(capabilities)], "timeout": TIMEOUT,
            "env": [f"PATH={os.environ.get('PATH', os.defpath)}"]}


def command(capabilities: Collection[str], pid: int, root: str, usage: str) -> list[str]:
    """Return the command of the tool that brings the libraries.

    :param capabilities: as in GrantOptions; the tool's options have the same names
    :param usage: the tool's help on its options
    :raises LookupError: the tool cannot keep the image's own libraries
    """
    own = next((option for option in NO_IMAGE_LIBRARIES if option.partition("=")[0] in usage), None)
    if own is None:
        raise LookupError(f"this host's {TOOL} mounts libraries by paths that the image chooses (CVE-2025-23359): "
                          "upgrade NVIDIA's container toolkit to 1.17.4 or later")
    return [TOOL, "--load-kmods", "configure", "--no-cgroups", "--no-devbind", "--ldconfig=@/sbin/ldconfig", own,
            *(f"--{name}" for name in sorted(capabilities)), f"--pid={pid}", root]


def main() -> int:
    """Run as an OCI hook: standard input is the container's state (OCI runtime specification, "State")."""
    state = json.load(sys.stdin)
    bundle = Path(state["bundle"])
    root = bundle / json.loads((bundle / "config.json").read_text(encoding="utf-8"))["root"]["path"]
    usage = subprocess.run([TOOL, "configure", "--help"], check=False, timeout=TIMEOUT, capture_output=True,
                           text=True).stdout
    try:
        asked = command(sys.argv[1:], int(state["pid"]), str(root), usage)
    except LookupError as error:
        print(error, file=sys.stderr)  # visible in Docker's output
        return 1
    return subprocess.run(asked, check=False, timeout=TIMEOUT).returncode


if __name__ == "__main__":
    sys.exit(main())
