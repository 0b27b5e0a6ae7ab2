# SPDX-License-Identifier: Apache-2.0
"""Support Intel GPUs."""
