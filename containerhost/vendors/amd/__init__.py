# SPDX-License-Identifier: Apache-2.0
"""Support AMD GPUs."""
