# SPDX-License-Identifier: Apache-2.0
"""Manage the interfaces of containers, for every engine."""
