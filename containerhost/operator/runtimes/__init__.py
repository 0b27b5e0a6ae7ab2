# SPDX-License-Identifier: Apache-2.0
"""Offer this host's devices to programs outside any cloud: container tools, batch systems, plain processes."""
