# SPDX-License-Identifier: Apache-2.0
"""Provision the virtual functions of network cards as the operator's file says."""
