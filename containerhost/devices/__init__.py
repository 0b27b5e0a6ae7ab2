# SPDX-License-Identifier: Apache-2.0
"""The devices of a host: what they are, whether they are well, and what it means for a container to have one."""
