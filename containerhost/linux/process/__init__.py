# SPDX-License-Identifier: Apache-2.0
"""Inspect processes of the host and of containers, and set their limits."""
