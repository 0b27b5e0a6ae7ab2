# SPDX-License-Identifier: Apache-2.0
"""Run containers on Docker."""

import sys

# The SDK's ssh transport is not used, and its imports take as long as all others: disable it.
sys.modules.setdefault("docker.transport.sshconn", None)  # type: ignore[arg-type]
