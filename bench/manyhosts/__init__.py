# SPDX-License-Identifier: Apache-2.0
"""A cloud with many emulated compute hosts, for bench/cloud.py."""
