#!/bin/sh
# SPDX-License-Identifier: MIT
# Every external command of gpucr-migrate in the world of test_migrate.py, under that command's
# name: two folders as two mounts, $FAKE/here and $FAKE/there, and a model of what verbs do to the
# processes and places in them. Commands are numbered; number $FAKE_AT goes wrong as $FAKE_MODE says
# (and $FAKE_AT2, $FAKE_MODE2). What must never happen is written to $FAKE/violations.
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

set_state() {
    sed -i "s/^state .*/state $2/" "$1/status"
}

make_place() {
    mkdir "$1" || exit 1
    mkdir "$1/snapshot"
    : >"$1/ctl"
    echo ok >"$1/error"
    printf 'state %s\nverb -\nstart_ticks 77\nheld_bytes 1000\n' "$2" >"$1/status"
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
    state=$(sed -n 's/^state //p' "$directory/status")
    shift 2
    case $verb:$state in
    freeze:running)
        rm -rf "$directory/snapshot"
        cp -r "$FAKE/truth" "$directory/snapshot"
        rm -r "$directory/snapshot/criu"
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
    state=$(sed -n 's/^state //p' "$1/status")
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
    mkdir -p "$to"
    [ -z "$delete" ] || find "$to" -mindepth 1 -delete
    cp -r "$from/." "$to"
}

perform() {
    case $name in
    rsh)
        shift
        FAKE_SIDE=there PATH=$fakes sh -c "$*"
        ;;
    rsync) copy "$@" ;;
    cat)
        file=$(readlink "/proc/$$/fd/1")
        case $file in
        *' (deleted)') refuse 'No such process' ;;
        */ctl)
            IFS= read -r words
            # shellcheck disable=SC2086 # a verb and its options
            carry_out "${file%/ctl}" $words
            ;;
        *) command "$name" "$@" ;;
        esac
        ;;
    mkdir)
        case $1 in
        "$FAKE"/*/mnt/*)
            [ ! -e "$1" ] || refuse 'File exists'
            make_place "$1" incoming
            ;;
        *) command mkdir "$@" ;;
        esac
        ;;
    rmdir) remove_place "$1" ;;
    *) command "$name" "$@" ;;
    esac
}

mode=
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
    kill -s "$mode" "$(cat "$FAKE/pid")"
    sleep 0.3
    ;;
die)
    kill -9 "$(cat "$FAKE/pid")"
    ;;
esac
perform "$@"
result=$?
case $mode in
kill-after) kill -9 $$ ;;
lost-after) exit 255 ;;
INT-after | TERM-after | HUP-after)
    kill -s "${mode%-after}" "$(cat "$FAKE/pid")"
    sleep 0.3
    ;;
die-after)
    kill -9 "$(cat "$FAKE/pid")"
    ;;
esac
exit "$result"
