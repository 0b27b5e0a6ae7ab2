# SPDX-License-Identifier: Apache-2.0
"""Simulate the placement of containers with the project's own planner, filter and weigher.

    .venv/bin/python -m bench.placement thesis|fit|trace|onedrs
"""
