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
    check_makers GPUCR_MOUNT "$1" || return
    [ -n "$is_known" ] || check_owners GPUCR_MOUNT "$1"
}
