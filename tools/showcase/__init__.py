# SPDX-License-Identifier: Apache-2.0
"""The demo: its story is told on the cloud of :mod:`tools.cloud`, and every sentence of it is checked."""
