# SPDX-License-Identifier: Apache-2.0
"""Manage network links, interfaces and functions of the host, for containers."""
