# SPDX-License-Identifier: Apache-2.0
"""Fetch, validate, cache and create Glance's images."""
