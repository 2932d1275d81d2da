# The mount point of the first gpucrfs that this user has made, else of the first one that root has
# made, into $mount: another user can give a mount of his own the same type.
search_mount() {
    user=$(id -u)
    while read -r _ _ _ _ where rest; do
        case $rest in
        *' - fuse.gpucrfs '*) ;;
        *) continue ;;
        esac
        case ,${rest##* }, in
        *",user_id=$user,"*)
            mount=$where
            break
            ;;
        *,user_id=0,*) [ -n "$mount" ] || mount=$where ;;
        esac
    done </proc/self/mountinfo
    # mountinfo has blanks and backslashes in three octal digits, and printf wants a 0 before them.
    case $mount in
    *\\*) mount=$(printf '%b' "$(printf '%s' "$mount" | sed 's/\\/\\0/g')") ;;
    esac
}

# Check the mount point that GPUCR_MOUNT names, without links: it has to be a gpucrfs of root's or of
# this user's, or a directory that nobody else can change and that is below no FUSE mount of another
# user's. false: a message is in $distrust.
check_mount() {
    user=$(id -u)
    distrust=
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
        case $1/ in
        "${where%/}"/*) ;;
        *) continue ;;
        esac
        maker=,${rest##* },
        maker=${maker##*,user_id=}
        maker=${maker%%,*}
        case $maker in
        0 | "$user") [ "$type:$where" != "fuse.gpucrfs:$1" ] || is_known=1 ;;
        *)
            distrust="GPUCR_MOUNT: $1 is not used: it is on a mount of user $maker, who is neither root nor you"
            return 1
            ;;
        esac
    done </proc/self/mountinfo
    [ -n "$is_known" ] || check_owners GPUCR_MOUNT "$1"
}
