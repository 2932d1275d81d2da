# SPDX-License-Identifier: MIT
# What the scripts here need that may not be installed: the one list of packages, in the names of
# Debian 12 and Ubuntu 24.04, and how to install what is missing. Sourced by bash scripts.
# shellcheck shell=bash

# One need a line: which set it belongs to, how to see that it is there, the package to install. A
# package in brackets is one to do without where the distribution does not have it.
needs='
build  command:gcc              gcc
build  header:stdio.h           libc6-dev
build  command:meson            meson
build  command:ninja            ninja-build
build  command:pkg-config       pkg-config
build  pkgconfig:fuse3          libfuse3-dev
build  pkgconfig:jansson        libjansson-dev
build  pkgconfig:libxxhash      libxxhash-dev
build  pkgconfig:liblz4         liblz4-dev
user   command:fusermount3      fuse3
full   command:scdoc            scdoc
full   pkgconfig:libsystemd     libsystemd-dev
full   pkgconfig:ncurses        libncurses-dev
full   pkgconfig:libseccomp     libseccomp-dev
full   command:clang            clang
full   command:ld.lld           lld
test   command:python3          python3
test   python:prometheus_client python3-prometheus-client
test   command:rsync            rsync
test   command:ip               iproute2
test   command:nsenter          util-linux
test   command:systemd-analyze  systemd
test   command:clang-format-14  (clang-format-14)
test   library:fuzzer           (libclang-rt-dev)
ci     command:ssh              openssh-client
ci     command:sshd             openssh-server
ci     amd:hip/hip_runtime_api.h (libamdhip64-dev)
'

# Is it there? have KIND:NAME
have() {
    local kind=${1%%:*} name=${1#*:}
    case $kind in
    command) command -v "$name" >/dev/null ;;
    header) echo "#include <$name>" | gcc -E -x c - >/dev/null 2>&1 ;;
    amd)
        echo "#include <$name>" |
            gcc -E -x c -D__HIP_PLATFORM_AMD__ -isystem /opt/rocm/include - >/dev/null 2>&1
        ;;
    # Packages are for the distribution's own, which another one may stand before.
    python) python3 -c "import $name" 2>/dev/null || /usr/bin/python3 -c "import $name" 2>/dev/null ;;
    pkgconfig) pkg-config --exists "$name" 2>/dev/null ;;
    library)
        echo 'int LLVMFuzzerTestOneInput(const char *d, long n) { return !d && n; }' |
            clang "-fsanitize=$name" -x c -o /dev/null - >/dev/null 2>&1
        ;;
    esac
}

# The packages of these sets that are missing, one a line: missing_packages SET...
missing_packages() {
    local set what package
    while read -r set what package; do
        case " $* " in
        *" $set "*) have "$what" || printf '%s\n' "$package" ;;
        esac
    done <<<"$needs"
}

# What to ask apt for, of the sets given: into the array `wanted`.
find_wanted() {
    local package
    wanted=()
    while read -r package; do
        case $package in
        '('*)
            package=${package//[()]/}
            [ -n "$(apt-cache madison "$package" 2>/dev/null)" ] || continue
            ;;
        esac
        wanted+=("$package")
    done < <(missing_packages "$@")
}

# Install what is missing of these sets, if we may; else say the command to type and return 1.
install_packages() {
    local -a wanted apt

    find_wanted "$@"
    [ ${#wanted[@]} -gt 0 ] || return 0
    if ! command -v apt-get >/dev/null; then
        printf 'Missing here (in the names of Debian): %s\nInstall these and try again.\n' \
            "${wanted[*]}" >&2
        return 1
    fi
    if [ "$(id -u)" -ne 0 ]; then
        printf 'Some packages are missing. Type this, then try again:\n\n    %s\n\n' \
            "sudo apt-get install ${wanted[*]}" >&2
        return 1
    fi

    # Someone else's apt may be at work, another run of ours for one: wait for its lock.
    apt=(apt-get -q -o DPkg::Lock::Timeout=600)
    "${apt[@]}" update >&2 </dev/null || : # what it could not reach, `install` will say
    find_wanted "$@"
    [ ${#wanted[@]} -gt 0 ] || return 0
    printf 'installing %s\n' "${wanted[*]}" >&2
    DEBIAN_FRONTEND=noninteractive "${apt[@]}" install -y --no-install-recommends \
        "${wanted[@]}" >&2 </dev/null || return 1
    find_wanted "$@"
    if [ ${#wanted[@]} -gt 0 ]; then
        printf 'Installed, but not found: %s\n' "${wanted[*]}" >&2
        return 1
    fi
}
