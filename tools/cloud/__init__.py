# SPDX-License-Identifier: Apache-2.0
"""A real all-in-one OpenStack on one machine, for the demo and for tests.

:class:`tools.cloud.cloud.Cloud` brings it up and takes it down; the other modules each know one part of it.
Everything listens on loopback or on unix sockets, and every file lies in one private directory.
"""
