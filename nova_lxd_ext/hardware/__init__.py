# SPDX-License-Identifier: Apache-2.0
"""Manage a server's devices: nova's claims, Cyborg's requests and Placement's slices."""
