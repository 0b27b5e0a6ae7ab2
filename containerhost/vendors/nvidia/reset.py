# SPDX-License-Identifier: Apache-2.0
"""Reset a whole GPU under its driver, which only NVIDIA's own tool does in safety."""

import shutil

from containerhost.errors import HostActionFailed
from containerhost.privileged import run

TOOL = "nvidia-smi"
TIMEOUT = 120  # s; resetting an NVLink-connected GPU retrains its links


def reset(address: str) -> bool:
    """Return False without the tool, or where it says that this GPU cannot be reset."""
    if shutil.which(TOOL) is None:
        return False
    try:
        run([TOOL, "--gpu-reset", f"--id={address}"], TIMEOUT)
    except HostActionFailed as error:
        if "not supported" not in str(error).lower():
            raise
        return False
    return True
