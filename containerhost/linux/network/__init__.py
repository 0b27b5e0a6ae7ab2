# SPDX-License-Identifier: Apache-2.0
"""Manage network links and interfaces of the host."""
