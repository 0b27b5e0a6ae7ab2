# SPDX-License-Identifier: Apache-2.0
"""Provide consoles and set passwords."""
