# SPDX-License-Identifier: Apache-2.0
"""A server's devices: nova's claims, Cyborg's requests and Placement's slices."""
