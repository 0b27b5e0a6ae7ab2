"""Tests on real drivers: an SR-IOV card and GPUs of a virtual machine (tools/vm). Run: ``sudo tools/test --vm``"""
