# SPDX-License-Identifier: Apache-2.0
"""The administrators' panel: which host has which devices, who holds them, and which are out of order."""
