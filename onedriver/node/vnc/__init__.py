# SPDX-License-Identifier: Apache-2.0
"""Provide a container's console over VNC: a terminal, drawn, for the viewers that OpenNebula's web interfaces have.

``server`` listens and does nothing else. For each client it starts a program of the driver, which is
``console_client``: as root it attaches to the console, and carries bytes between that and a process without any rights,
``session``, which talks with the client (``rfb``, ``keys``) and draws what the guest prints (``terminal``,
``framebuffer``, ``glyphs``).
"""
