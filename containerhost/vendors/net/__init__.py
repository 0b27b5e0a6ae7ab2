# SPDX-License-Identifier: Apache-2.0
"""Support network functions of any vendor."""
