# SPDX-License-Identifier: Apache-2.0
"""Rebuild images that tenants made, so that no engine parses an archive or metadata that a tenant wrote.

``rebuild`` starts ``worker`` in a process without privileges, network or unlimited memory. There ``source`` turns any
accepted file into a tar stream, ``members`` parses that stream, ``rootfs`` decides what each member becomes, and
``writer`` writes a new archive from validated values. An engine gets that archive alone.
"""
