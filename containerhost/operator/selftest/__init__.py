# SPDX-License-Identifier: Apache-2.0
"""Attach devices of a host to test containers and detach them (``containerhost selftest``)."""
