# Who can change what a path without links leads to: owners PATH. In each line the owner of the path
# or of a directory above it, or "all", and the path of that.
owners() {
    step=$1
    while :; do
        mode=$(stat -c '%u %a' -- "$step") || return
        # With the sticky bit nobody removes what is another's there, but anybody adds files.
        [ "$step" != "$1" ] || [ ! -d "$step" ] || mode="${mode%% *} ${mode#"${mode%?}"}"
        case $mode in
        *' '[1357]???) ;;
        *[2367]) mode=all ;;
        esac
        printf '%s %s\n' "${mode%% *}" "$step"
        [ "$step" != / ] || return 0
        step=$(dirname -- "$step")
    done
}

# Is a path without links on no FUSE mount of another user, who can make it say of its files what he
# likes? check_makers NAME PATH; false: a message is in $distrust. $is_known: it is a gpucrfs of root's
# or of this user's.
check_makers() {
    distrust="$1: $2 is not used: it cannot be seen whose it is"
    user=$(id -u)
    is_known=
    while read -r _ _ _ _ where rest; do
        type=${rest##* - }
        type=${type%% *}
        case $type in
        fuse*) ;;
        *) continue ;;
        esac
        case $where in
        *\\*) where=$(printf '%b' "$(printf '%s' "$where" | sed 's/\\/\\0/g')") ;;
        esac
        case $2/ in
        "${where%/}"/*) ;;
        *) continue ;;
        esac
        maker=,${rest##* },
        maker=${maker##*,user_id=}
        maker=${maker%%,*}
        case $maker in
        0 | "$user") [ "$type:$where" != "fuse.gpucrfs:$2" ] || is_known=1 ;;
        *)
            distrust="$1: $2 is not used: it is on a mount of user $maker, who is neither root nor you"
            return 1
            ;;
        esac
    done </proc/self/mountinfo || return
    distrust=
}

# Can nobody change it but root, this user, and those who can change this script? The environment
# can be that of another user (su, sudo -E). check_owners NAME PATH-WITHOUT-LINKS; false: a message is
# in $distrust.
check_owners() {
    check_makers "$1" "$2" || return
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
