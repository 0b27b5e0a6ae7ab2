#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# OpenNebula starts and stops the monitoring of a node with this: [stop] lxdone HOST_ID HOSTNAME, its options on stdin.
cd "${0%/*}/.." && exec lxdone-monitor "$PWD" "$@"
