# SPDX-License-Identifier: Apache-2.0
"""The programs of examples/elastic as jobs of containers: an image of them, and how to run and to judge each."""
