# SPDX-License-Identifier: Apache-2.0
"""Functional tests that need the emulated host ``mixed``: hardware of every vendor and kind."""
