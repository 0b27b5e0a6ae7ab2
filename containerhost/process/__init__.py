# SPDX-License-Identifier: Apache-2.0
"""Processes of the host and of containers, and their limits."""
