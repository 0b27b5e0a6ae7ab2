# SPDX-License-Identifier: Apache-2.0
"""Give devices of a host to containers of its own and take them (``containerhost selftest``)."""
