# SPDX-License-Identifier: Apache-2.0
"""Provide a container's console over VNC, as a drawn terminal for the viewers of OpenNebula's web interfaces.

``server`` only listens. For each client it starts a program of the driver, ``console_client``: as root it attaches
to the console, and copies bytes between that and an unprivileged process, ``session``, which serves the client
(``rfb``, ``keys``) and draws the guest's output (``terminal``, ``framebuffer``, ``glyphs``).
"""
