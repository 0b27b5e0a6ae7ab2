# SPDX-License-Identifier: Apache-2.0
"""Provide Neutron's ports as interfaces of a container."""
