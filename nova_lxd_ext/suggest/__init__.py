# SPDX-License-Identifier: Apache-2.0
"""Suggest nova's configuration and flavors for the devices of a host."""
