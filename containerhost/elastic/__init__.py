# SPDX-License-Identifier: Apache-2.0
"""Divide the cores and the memory of a host among the containers that opted in, while they run."""
