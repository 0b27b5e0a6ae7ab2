# SPDX-License-Identifier: Apache-2.0
"""Describe the compute node for nova and Placement."""
