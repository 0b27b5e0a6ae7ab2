# SPDX-License-Identifier: Apache-2.0
"""Neutron's ports as interfaces of a container."""
