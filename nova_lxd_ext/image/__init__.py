# SPDX-License-Identifier: Apache-2.0
"""Fetch, check, keep and make Glance's images."""
