# SPDX-License-Identifier: Apache-2.0
"""Stateful property tests: sequences of operations, faults, kills and restarts on engines in memory and emulated trees.

    stestr --test-path ./tests/model run       each machine for MODEL_SECONDS (20), from a seed of the commit

A failure prints the steps that lead to it, and the MODEL_SEED that finds it at once.
"""

import os

# As nova-compute runs by default; nova reads it when it is imported.
os.environ.setdefault("OS_NOVA_DISABLE_EVENTLET_PATCHING", "1")
