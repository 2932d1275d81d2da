#!/bin/sh
# SPDX-License-Identifier: MIT
# Every external command of gpucr-migrate in the world of test_migrate.py, under that command's
# name: two folders as two mounts, $FAKE/here and $FAKE/there, and a model of what verbs do to the
# processes and places in them. Commands are numbered; number $FAKE_AT goes wrong as $FAKE_MODE says
# (and $FAKE_AT2, $FAKE_MODE2). What must never happen is written to $FAKE/violations. It is run some
# thousand times: what the shell does itself costs a tenth of a process.
set -u

fakes=$PATH
PATH=$FAKE_PATH
name=${0##*/}
side=${FAKE_SIDE:-here}
read -r number <"$FAKE/count"
number=$((number + 1))
echo "$number" >"$FAKE/count"
printf '%s %s %s %s \0' "$number" "$side" "$name" "$*" >>"$FAKE/log"

violation() {
    printf '%s\n' "$*" >>"$FAKE/violations"
}

refuse() {
    printf '%s: injected: %s\n' "$name" "$1" >&2
    exit 1
}

# state_of DIRECTORY: into $state
state_of() {
    state=
    while read -r key value; do
        [ "$key" != state ] || state=$value
    done <"$1/status"
}

set_state() {
    sed -i "s/^state .*/state $2/" "$1/status"
}

make_place() {
    mkdir "$1" "$1/snapshot" || exit 1
    : >"$1/ctl"
    echo ok >"$1/error"
    printf 'state %s\nverb -\npid 4711\nstart_ticks 77\nheld_bytes 1000\n' "$2" >"$1/status"
}

# A process comes to life: alive HERE-OR-THERE
come_alive() {
    for other in here there; do
        [ ! -e "$FAKE/alive-$other" ] || violation "alive on $1, and alive on $other"
    done
    : >"$FAKE/alive-$1"
}

# carry_out DIRECTORY VERB OPTION...
carry_out() {
    directory=$1
    verb=$2
    where=${directory#"$FAKE/"}
    where=${where%%/*}
    state_of "$directory"
    shift 2
    case $verb:$state in
    freeze:running)
        rm -rf "$directory/snapshot"
        mkdir "$directory/snapshot"
        cp -r "$FAKE/truth/manifest" "$FAKE/truth/vram" "$FAKE/truth/processes" "$directory/snapshot"
        set_state "$directory" frozen
        ;;
    thaw:frozen) set_state "$directory" running ;;
    thaw:running) ;;
    drop:dumped) remove_place "$directory" ;;
    dump:running | dump:frozen)
        place=${directory%/*}/default-name
        for option; do
            case $option in
            name=*) place=${directory%/*}/${option#name=} ;;
            esac
        done
        make_place "$place" dumped
        if [ -n "${FAKE_SQUAT:-}" ]; then
            sed -i 's/^pid .*/pid 4712/' "$place/status"
            refuse 'File exists'
        fi
        cp -r "$FAKE/truth/." "$place/snapshot"
        rm -r "$directory"
        ln -s "${place##*/}" "$directory"
        rm "$FAKE/alive-$where"
        ;;
    thaw:dumped | thaw:incoming)
        if [ -n "${FAKE_REFUSE:-}" ] && [ "$where" = there ]; then
            echo 'ENOMEM: GPU 0 has too little VRAM' >"$directory/error"
            refuse 'Cannot allocate memory'
        fi
        if ! diff -r "$FAKE/truth" "$directory/snapshot" >/dev/null; then
            echo 'EIO: the snapshot is not complete' >"$directory/error"
            refuse 'Input/output error'
        fi
        come_alive "$where"
        set_state "$directory" running
        ;;
    *)
        echo "EBUSY: $verb does not apply" >"$directory/error"
        refuse 'Device or resource busy'
        ;;
    esac
}

remove_place() {
    [ -d "$1" ] || refuse 'No such file or directory'
    state_of "$1"
    if [ "$state" = dumped ] && ! [ -e "$FAKE/alive-there" ]; then
        violation "the only copy is removed"
    fi
    rm -r "$1"
    [ ! -L "${1%/*}/4711" ] || rm "${1%/*}/4711"
}

copy() {
    delete=
    for word; do
        [ "$word" != --delete ] || delete=1
        from=${to:-}
        to=$word
    done
    to=/${to#*:/}
    case $to in
    "$FAKE"/there/*/snapshot/*) ;;
    *) refuse "no place: $to" ;;
    esac
    [ -d "${to%%/snapshot/*}" ] || refuse 'No such file or directory'
    [ -d "$to" ] || mkdir -p "$to"
    [ -z "$delete" ] || find "$to" -mindepth 1 -delete
    cp -r "$from/." "$to"
}

# The real one, which is the last of this process where nothing is to go wrong after it.
real() {
    [ -n "$mode" ] || exec "$name" "$@"
    command "$name" "$@"
}

# print_file FILE: as cat does
print_file() {
    while IFS= read -r line; do
        printf '%s\n' "$line"
    done <"$1"
}

perform() {
    case $name in
    rsh | rsync)
        if [ -e "/proc/$$/fd/4" ]; then
            case $(readlink "/proc/$$/fd/4") in
            */ctl) violation "$name has the place's ctl open" ;;
            esac
        fi
        ;;
    esac
    case $name in
    rsh)
        shift
        export FAKE_SIDE=there PATH="$fakes"
        [ -n "$mode" ] || exec sh -c "$*"
        sh -c "$*"
        ;;
    rsync) copy "$@" ;;
    cat)
        # A verb is written to a file, all else is read through a pipe.
        if [ -p "/proc/$$/fd/1" ]; then
            if [ $# -eq 1 ] && [ -r "$1" ]; then
                print_file "$1"
            else
                real "$@"
            fi
            return
        fi
        file=$(readlink "/proc/$$/fd/1")
        case $file in
        *' (deleted)') refuse 'No such process' ;;
        */ctl)
            IFS= read -r words
            # shellcheck disable=SC2086 # a verb and its options
            carry_out "${file%/ctl}" $words
            ;;
        *) real "$@" ;;
        esac
        ;;
    mkdir)
        case $1 in
        "$FAKE"/*/mnt/*)
            [ ! -e "$1" ] || refuse 'File exists'
            make_place "$1" incoming
            ;;
        *) real "$@" ;;
        esac
        ;;
    rmdir) remove_place "$1" ;;
    *) real "$@" ;;
    esac
}

mode=
read -r script <"$FAKE/pid"
[ "$number" != "${FAKE_AT:-}" ] || mode=$FAKE_MODE
[ "$number" != "${FAKE_AT2:-}" ] || mode=$FAKE_MODE2
case $mode in
fail) refuse 'Input/output error' ;;
kill) kill -9 $$ ;;
lost) exit 255 ;;
late)
    (
        sleep 0.5
        perform "$@"
        : >"$FAKE/late"
    ) >/dev/null 2>&1 &
    exit 255
    ;;
INT | TERM | HUP)
    kill -s "$mode" "$script"
    sleep 0.3
    ;;
die)
    kill -9 "$script"
    ;;
esac
perform "$@"
result=$?
case $mode in
kill-after) kill -9 $$ ;;
lost-after) exit 255 ;;
INT-after | TERM-after | HUP-after)
    kill -s "${mode%-after}" "$script"
    sleep 0.3
    ;;
die-after)
    kill -9 "$script"
    ;;
esac
exit "$result"
