# SPDX-License-Identifier: Apache-2.0
"""Manage a server's life cycle: from its flavor to its container, its moves and its end."""
