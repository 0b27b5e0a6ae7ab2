# SPDX-License-Identifier: Apache-2.0
"""Decide where containers of HPC and ML jobs run: CPUs, memory nodes, devices, number of containers. Pure."""
