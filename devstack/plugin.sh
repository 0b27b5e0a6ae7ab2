#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# DevStack's plug-in of the Nova driver for LXD and Incus. DevStack sources it at each of its phases.

NOVA_LXD_EXT_DIR=${GITDIR[nova-lxd-ext]}

# LXD and Incus have the same commands under different names.
function lxd_client {
    if [[ "$LXD_ENGINE" == lxd ]]; then
        sudo lxc "$@"
    else
        sudo incus "$@"
    fi
}

# An engine that is there stays as it is.
function install_lxd_engine {
    if lxd_client version > /dev/null 2>&1; then
        return
    fi
    # shellcheck disable=SC2154 # os_VENDOR is DevStack's
    if [[ "$LXD_ENGINE" == incus || "$os_VENDOR" == Debian ]]; then
        install_package "$LXD_ENGINE"
    else
        install_package snapd
        sudo snap install lxd
    fi
}

function configure_lxd_engine {
    if ! lxd_client storage show "$LXD_STORAGE_POOL" > /dev/null 2>&1; then
        lxd_client storage create "$LXD_STORAGE_POOL" "$LXD_STORAGE_DRIVER"
    fi
    if [[ -n "$LXD_MIGRATION_ADDRESS" ]]; then
        lxd_client config set core.https_address "${LXD_MIGRATION_ADDRESS#https://}"
    fi
    # Every container has ids of its own.
    local file
    for file in /etc/subuid /etc/subgid; do
        if ! grep -q '^root:' "$file"; then
            echo "root:1000000:1000000000" | sudo tee -a "$file" > /dev/null
        fi
    done
    sudo install -d -o "$STACK_USER" "$LXD_OWNERS_DIR"
}

function configure_nova_lxd_ext {
    iniset "$NOVA_CONF" DEFAULT compute_driver lxd.LXDDriver
    iniset "$NOVA_CONF" lxd storage_pool "$LXD_STORAGE_POOL"
    iniset "$NOVA_CONF" lxd owners_dir "$LXD_OWNERS_DIR"
    if [[ -n "$LXD_MIGRATION_ADDRESS" ]]; then
        iniset "$NOVA_CONF" lxd migration_address "$LXD_MIGRATION_ADDRESS"
    fi
    # nova-compute is not root here. Nova's rootwrap has no filter for the driver's helper; DevStack's user may sudo.
    iniset "$NOVA_CONF" lxd_privileged helper_command "sudo $NOVA_BIN_DIR/privsep-helper --config-file $NOVA_CPU_CONF"
}

if [[ "$VIRT_DRIVER" == lxd ]] && is_service_enabled n-cpu; then
    if [[ "$LXD_ENGINE" != lxd && "$LXD_ENGINE" != incus ]]; then
        die $LINENO "LXD_ENGINE is '$LXD_ENGINE'; it must be lxd or incus"
    fi
    case "$1 ${2:-}" in
        "stack install")
            echo_summary "Installing nova-lxd-ext and $LXD_ENGINE"
            install_lxd_engine
            setup_develop "$NOVA_LXD_EXT_DIR" nova
            ;;
        "stack post-config")
            echo_summary "Configuring nova-lxd-ext"
            configure_lxd_engine
            configure_nova_lxd_ext
            ;;
    esac
fi
