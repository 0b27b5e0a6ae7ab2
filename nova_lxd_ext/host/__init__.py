# SPDX-License-Identifier: Apache-2.0
"""The compute node in the words of nova and Placement."""
