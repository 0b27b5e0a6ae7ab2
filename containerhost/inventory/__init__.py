# SPDX-License-Identifier: Apache-2.0
"""Know what this host has: its devices, its processors and memory, and what its operator decided about them."""
