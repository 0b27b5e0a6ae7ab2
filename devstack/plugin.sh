#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# DevStack's plug-in of the Nova driver for LXD and Incus. DevStack sources it at each of its phases.

NOVA_LXD_EXT_DIR=${GITDIR[nova-lxd-ext]}

# LXD and Incus have the same commands under different names. Some read what they make from their input.
function lxd_client {
    if [[ "$LXD_ENGINE" == lxd ]]; then
        sudo lxc "$@" < /dev/null
    else
        sudo incus "$@" < /dev/null
    fi
}

# An engine that is there stays as it is.
function install_lxd_engine {
    if lxd_client version > /dev/null 2>&1; then
        return
    fi
    # shellcheck disable=SC2154 # os_VENDOR is DevStack's
    if [[ "$LXD_ENGINE" == incus && "$os_VENDOR" == Debian ]]; then
        # Without virtual machines, whose QEMU Debian 12 does not have in this version.
        install_package incus-base
    elif [[ "$LXD_ENGINE" == incus || "$os_VENDOR" == Debian ]]; then
        install_package "$LXD_ENGINE"
    else
        install_package snapd
        sudo snap install lxd
    fi
}

# DevStack uploads it with the images of IMAGE_URLS.
function make_lxd_image {
    install_package busybox-static
    mkdir -p "$(dirname "$LXD_IMAGE")"
    PYTHONPATH=$NOVA_LXD_EXT_DIR "$PYTHON" -m tools.cloud.image "$LXD_IMAGE"
}

function configure_lxd_engine {
    if ! lxd_client storage show "$LXD_STORAGE_POOL" > /dev/null 2>&1; then
        lxd_client storage create "$LXD_STORAGE_POOL" "$LXD_STORAGE_DRIVER"
        lxd_client storage set "$LXD_STORAGE_POOL" user.devstack true
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
    sudo install -m 644 "$NOVA_LXD_EXT_DIR/etc/sysctl/60-containerhost.conf" /etc/sysctl.d/
    sudo sysctl --quiet --load /etc/sysctl.d/60-containerhost.conf
    sudo install -d -o "$STACK_USER" "$LXD_OWNERS_DIR"
}

function configure_nova_lxd_ext {
    iniset "$NOVA_CONF" DEFAULT compute_driver lxd.LXDDriver
    if [[ "$LXD_ENGINE" == incus ]]; then
        iniset "$NOVA_CONF" lxd endpoint /var/lib/incus/unix.socket # else an LXD beside it is taken
    fi
    iniset "$NOVA_CONF" lxd storage_pool "$LXD_STORAGE_POOL"
    iniset "$NOVA_CONF" lxd owners_dir "$LXD_OWNERS_DIR"
    if [[ -n "$LXD_MIGRATION_ADDRESS" ]]; then
        iniset "$NOVA_CONF" lxd migration_address "$LXD_MIGRATION_ADDRESS"
    fi
    # nova-compute is not root here. Nova's rootwrap has no filter for the driver's helper; DevStack's user may sudo.
    iniset "$NOVA_CONF" lxd_privileged helper_command "sudo $NOVA_BIN_DIR/privsep-helper --config-file $NOVA_CPU_CONF"
}

# Write what the driver suggests for this host's devices. An option may stand there several times.
function offer_lxd_devices {
    local suggested section line option
    local -A seen=()
    suggested=$("$NOVA_BIN_DIR/containerhost" config nova)
    while read -r line; do
        option=${line%% = *}
        if [[ "$line" == \[*\] ]]; then
            section=${line:1:-1}
        elif [[ "$line" == \#* || "$line" != *" = "* ]]; then
            continue
        elif [[ -v seen[$section.$option] ]]; then
            iniadd_literal "$NOVA_CONF" "$section" "$option" "${line#* = }"
        else
            iniset "$NOVA_CONF" "$section" "$option" "${line#* = }"
            seen[$section.$option]=yes
        fi
    done <<< "$suggested"
    iniset "$NOVA_CONF" filter_scheduler enabled_filters "$NOVA_FILTERS,NUMATopologyFilter,PciPassthroughFilter"
}

# One flavor of each kind of device, unless another host has made it.
function make_lxd_flavors {
    local suggested command
    suggested=$("$NOVA_BIN_DIR/containerhost" config nova --flavors openstack --disk "$LXD_FLAVOR_DISK")
    while read -ra command; do
        if [[ "${command[*]:0:3}" == "openstack flavor create" ]] \
                && ! openstack --os-cloud devstack-admin flavor show "${command[3]}" > /dev/null 2>&1; then
            openstack --os-cloud devstack-admin "${command[@]:1}"
        fi
    done <<< "$suggested"
}

function configure_lxd_tempest {
    local features option value
    features=$(PYTHONPATH=$NOVA_LXD_EXT_DIR "$PYTHON" -m tools.tempestrun.features)
    while read -r option value; do
        iniset "$TEMPEST_CONFIG" compute-feature-enabled "$option" "$value"
    done <<< "$features"
}

# The panels, and a form that does not offer to boot from a volume first.
function configure_lxd_horizon {
    local ours=$NOVA_LXD_EXT_DIR/nova_lxd_dashboard theirs=$HORIZON_DIR/openstack_dashboard/local
    cp "$ours"/enabled/_[0-9]*.py "$theirs/enabled/"
    cp "$ours"/local_settings/_[0-9]*.py "$theirs/local_settings.d/"
}

# Nova releases their devices, ports and volumes, as long as it runs; the containers go in any case.
function delete_lxd_servers {
    local servers container
    # unstack.sh has openrc's variables of another user, which would win over the cloud that is named here.
    servers=$(unset "${!OS_@}"; timeout 60 openstack --os-cloud devstack-admin server list --all-projects \
        --host "$(hostname)" --format value --column ID || true)
    if [[ -n "$servers" ]]; then
        # shellcheck disable=SC2086 # one word for each server
        (unset "${!OS_@}"; timeout 180 openstack --os-cloud devstack-admin server delete --all-projects --wait $servers) || true
    fi
    stop_process n-cpu
    for container in $(lxd_client list --format csv --columns n,user.nova.uuid | awk -F , '$2 { print $1 }'); do
        lxd_client delete --force "$container"
    done
}

function cleanup_lxd {
    local image
    sudo rm -rf "$LXD_OWNERS_DIR"
    for image in $(lxd_client image list --format csv --columns l | awk '/^nova-/ { print $1 }'); do
        lxd_client image delete "$image"
    done
    if [[ "$(lxd_client storage get "$LXD_STORAGE_POOL" user.devstack 2> /dev/null)" == true ]]; then
        lxd_client storage delete "$LXD_STORAGE_POOL"
    fi
    if [[ -n "$LXD_MIGRATION_ADDRESS" ]]; then
        lxd_client config unset core.https_address
    fi
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
            if [[ -n "$LXD_IMAGE" ]]; then
                make_lxd_image
            fi
            ;;
        "stack post-config")
            echo_summary "Configuring nova-lxd-ext"
            # It writes nova.conf too, in the background.
            async_wait configure_neutron_nova
            configure_lxd_engine
            configure_nova_lxd_ext
            if is_service_enabled horizon; then
                configure_lxd_horizon
            fi
            if [[ "$LXD_DEVICES" == True ]]; then
                offer_lxd_devices
            fi
            ;;
        "stack extra")
            if [[ "$LXD_DEVICES" == True ]] && is_service_enabled n-api; then
                echo_summary "Creating flavors of this host's devices"
                make_lxd_flavors
            fi
            ;;
        "stack test-config")
            if is_service_enabled tempest; then
                configure_lxd_tempest
            fi
            ;;
        "unstack ")
            delete_lxd_servers
            ;;
        "clean ")
            cleanup_lxd
            ;;
    esac
fi
