# SPDX-License-Identifier: Apache-2.0
"""Provide the command ``containerhost`` for the operator of a host."""
