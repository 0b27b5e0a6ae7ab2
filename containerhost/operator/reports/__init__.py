# SPDX-License-Identifier: Apache-2.0
"""Report for the command ``containerhost``."""
