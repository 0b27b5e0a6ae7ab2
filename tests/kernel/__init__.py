# SPDX-License-Identifier: Apache-2.0
"""Tests of processes, control groups, mounts, namespaces and interfaces: they need root, and run one at a time."""
