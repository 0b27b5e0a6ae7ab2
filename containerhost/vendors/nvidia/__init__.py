# SPDX-License-Identifier: Apache-2.0
"""Support NVIDIA GPUs: description, health, reset, libraries and partitioning (MIG)."""
