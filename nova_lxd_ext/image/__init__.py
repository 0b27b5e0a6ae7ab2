# SPDX-License-Identifier: Apache-2.0
"""Glance's images: fetched, checked, kept and made."""
