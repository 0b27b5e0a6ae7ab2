# SPDX-License-Identifier: Apache-2.0
"""Stateful property tests: sequences of operations, faults, kills and restarts on engines in memory and emulated trees.

    PYTHONHASHSEED=0 stestr --test-path ./tests/model run      a fixed number of rounds, from a seed of the commit
    MODEL_SECONDS=600 PYTHONHASHSEED=0 stestr …                each machine for ten minutes

``nova.test_sweep`` interrupts each of nova's requests at each step instead, ``opennebula.test_sweep`` each of oned's
actions: at the gate its share of the points, all of them at the exhaustive level (TEST_LEVEL=exhaustive).

A failure prints the steps that lead to it, and the MODEL_SEED that finds it at once. What a seed finds depends on
nothing else: clocks are counters, and sets have one order where PYTHONHASHSEED is set.
"""

import os

# As nova-compute runs by default; nova reads it when it is imported.
os.environ.setdefault("OS_NOVA_DISABLE_EVENTLET_PATCHING", "1")
