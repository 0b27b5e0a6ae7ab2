#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# OpenNebula starts and stops the monitoring of a node with this: [stop] onedock HOST_ID HOSTNAME, its options on stdin.
cd "${0%/*}/.." && exec onedock-monitor "$PWD" "$@"
