# SPDX-License-Identifier: Apache-2.0
"""Commands for who works on this project or tries it out; nothing here is installed."""
