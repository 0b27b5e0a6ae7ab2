#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Images for the samples beside this file, in the datastore "containers". SIZE is the root's, in MiB.
oneimage create --datastore containers --name nginx --type OS --path docker://nginx:1.27 --size 1024
oneimage create --datastore containers --name pytorch --type OS --path docker://pytorch/pytorch:latest --size 20480
oneimage create --datastore containers --name mpi --type OS --path /var/tmp/mpi.tar --size 4096
oneimage create --datastore containers --name results --type DATABLOCK --fs ext4 --size 10240 --persistent
