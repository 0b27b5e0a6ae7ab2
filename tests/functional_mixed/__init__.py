"""Functional tests that need the emulated host ``mixed``: hardware of every vendor and kind."""
