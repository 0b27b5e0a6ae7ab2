"""Where the benchmarks run: on an emulated host, with this repository first in the path. Imports nothing of nova."""

import os
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))
os.environ.setdefault("OS_NOVA_DISABLE_EVENTLET_PATCHING", "1")


def enter() -> None:
    """Go on under tools/fakehost, unless this already runs there."""
    if "FAKEHOST_CONTROL" not in os.environ:
        tool = REPOSITORY / "tools" / "fakehost"
        command = [sys.executable, str(tool), "--host", "small", "--", sys.executable, *sys.argv]
        os.execv(sys.executable, command)
