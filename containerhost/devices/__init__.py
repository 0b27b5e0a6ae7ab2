# SPDX-License-Identifier: Apache-2.0
"""Describe the devices of a host: what they are, their health, and what a container with one gets."""
