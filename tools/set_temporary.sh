# Set TMPDIR, where mktemp(1) makes files, to a directory in which nobody else can put another file in
# their place.
set_temporary() {
    find_trusted directory TMPDIR "${TMPDIR:-/tmp}" || found=
    [ -d "$found" ] || found=/tmp
    TMPDIR=$found
    export TMPDIR
}
