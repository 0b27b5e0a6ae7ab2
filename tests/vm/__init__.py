# SPDX-License-Identifier: Apache-2.0
"""Tests on real drivers: an SR-IOV card and GPUs of a virtual machine (tools/vm). Run: ``sudo tools/test --vm``"""
