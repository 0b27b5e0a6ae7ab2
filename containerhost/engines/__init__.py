# SPDX-License-Identifier: Apache-2.0
"""Run containers, on any engine: the contract and what the engines share."""
