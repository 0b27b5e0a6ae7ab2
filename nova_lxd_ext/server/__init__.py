# SPDX-License-Identifier: Apache-2.0
"""A server's life: from its flavor to its container, its moves and its end."""
