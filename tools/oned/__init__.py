# SPDX-License-Identifier: Apache-2.0
"""A real OpenNebula on one machine: a front-end and two nodes, each an emulated host in namespaces of its own."""
