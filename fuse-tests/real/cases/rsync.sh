setup() {
    mkdir -p from/sub/deep to/sub
    echo one > from/one
    ln from/one from/sub/same-as-one
    ln -s ../one from/sub/link
    mkfifo from/fifo
    truncate -s 3M from/sparse
    printf tail >> from/sparse
    chmod 4711 from/one
    setfattr -n user.note -v 'kept by rsync' from/one
    # An ACL that names us: a user namespace knows no other user.
    setfacl -m "u:$(id -u):rx" from/sub
    printf 'old' > to/one
    printf 'goes' > to/gone
    printf 'x' > "to/name with
newline"
    touch -d '2020-02-02 02:02:02.123456789' from/sub/deep from/sparse
    # Another time than that of `from`, which may be made in the same tick: setting it would be no change.
    touch -d '2021-03-03 03:03:03' to to/sub
}

work() {
    rsync -aHAXS --delete from/ to/
}

check() {
    test "$(stat -c %i to/one)" = "$(stat -c %i to/sub/same-as-one)"
    test "$(getfattr --only-values -n user.note to/one)" = 'kept by rsync'
    test -z "$(rsync -aHAXSn --delete --itemize-changes from/ to/)"
}
