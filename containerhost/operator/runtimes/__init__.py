# SPDX-License-Identifier: Apache-2.0
"""Offer this host's devices to programs that no cloud started: container tools, batch systems, plain processes."""
