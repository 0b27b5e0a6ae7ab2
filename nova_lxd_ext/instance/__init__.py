# SPDX-License-Identifier: Apache-2.0
"""Translate between nova's instance and its container: flavor, labels, states, requested resources."""
