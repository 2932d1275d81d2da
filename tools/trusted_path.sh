# Who can change what a path without links leads to: owners PATH. In each line the owner of the path
# or of a directory above it, or "all", and the path of that.
owners() {
    step=$1
    while :; do
        mode=$(stat -c '%u %a' -- "$step") || return
        case $mode in
        *' '[1357]???) ;; # nobody removes what is another's there
        *[2367]) mode=all ;;
        esac
        printf '%s %s\n' "${mode%% *}" "$step"
        [ "$step" != / ] || return 0
        step=$(dirname -- "$step")
    done
}

# Can nobody change it but root, this user, and those who can change this script? The environment
# can be that of another user (su, sudo -E). check_owners NAME PATH-WITHOUT-LINKS; false: a message is
# in $distrust.
check_owners() {
    distrust="$1: $2 is not used: it cannot be seen whose it is"
    chain=$(owners "$2" 2>/dev/null) || return
    script=$(readlink -f -- "$0" 2>/dev/null) || script=/
    trusted=" 0 $(id -u) $(owners "$script" 2>/dev/null | while read -r owner _; do
        printf '%s ' "$owner"
    done)"
    while read -r owner step; do
        case $trusted in
        *" $owner "*) continue ;;
        esac
        case $owner in
        all) distrust="$1: $2 is not used: all can write to $step" ;;
        *) distrust="$1: $2 is not used: $step belongs to user $owner, and neither to root nor to you" ;;
        esac
        return 1
    done <<CHAIN
$chain
CHAIN
    distrust=
}
