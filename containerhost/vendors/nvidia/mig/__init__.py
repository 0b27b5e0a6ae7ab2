# SPDX-License-Identifier: Apache-2.0
"""MIG: into which slices a host's NVIDIA GPUs are cut, and cutting them anew when their operator says so."""
