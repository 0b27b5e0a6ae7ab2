# SPDX-License-Identifier: Apache-2.0
"""Suggest a node's options and OpenNebula's templates for the devices of a host."""
