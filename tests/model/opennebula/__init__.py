# SPDX-License-Identifier: Apache-2.0
"""OpenNebula's life cycle of VMs on a node of each of its drivers, with kills, failures, restarts and sick devices."""
