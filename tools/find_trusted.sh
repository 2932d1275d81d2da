# Find what a variable names, or the mount: the environment can be that of another user (su, sudo -E).
# The path without links is in $found, or nothing if there is none; false: why it is not used. That
# nothing could be found out ends the script.
# find_trusted file|directory NAME PATH, find_trusted mount
find_trusted() {
    self=$(readlink -f -- "$0" 2>/dev/null) || self=$0
    # In the build tree the program is beside this script.
    finder=$(dirname -- "$self")
    [ -d "$finder/../meson-private" ] || finder=$helperdir
    found=$("$finder/gpucr-trusted" "$@") && return
    [ -n "$found" ] || fail "$finder/gpucr-trusted could not be run: install all of gpucrfs"
    return 1
}
