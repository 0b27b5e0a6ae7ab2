# SPDX-License-Identifier: Apache-2.0
"""Partition a host's NVIDIA GPUs into slices (MIG) as the operator configures."""
