#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prints on one line what a task of Slurm's was given, and the device nodes that there are:
# `srun --gres=gpu:1,nic:1 devices`. Not by find(1): it takes nodes that the engine has mounted for files.
echo "$SLURMD_NODENAME gpu=$CUDA_VISIBLE_DEVICES nic=$SLURM_STEP_NICS" \
    $(ls -d /dev/nvidia* /dev/dri/* /dev/infiniband/* /dev/kfd 2> /dev/null)
