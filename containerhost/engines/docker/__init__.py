# SPDX-License-Identifier: Apache-2.0
"""Run containers on Docker."""

import sys

# The SDK's way over ssh is not used, and loading what it needs takes as long as all the rest: it is not found.
sys.modules.setdefault("docker.transport.sshconn", None)  # type: ignore[arg-type]
