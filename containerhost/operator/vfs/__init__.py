# SPDX-License-Identifier: Apache-2.0
"""Provision the virtual functions of network cards as configured by the operator's file."""
