setup() {
    sqlite3 wal.db 'PRAGMA journal_mode = WAL; CREATE TABLE t (id INTEGER PRIMARY KEY, text TEXT);' > /dev/null
    sqlite3 roll.db 'PRAGMA journal_mode = DELETE; CREATE TABLE t (id INTEGER PRIMARY KEY, text TEXT);' > /dev/null
}

# One transaction a statement: 10,000 in WAL mode; in rollback mode each makes and removes a journal file.
work() {
    { echo 'PRAGMA synchronous = NORMAL;'; seq 1 10000 | sed 's/.*/INSERT INTO t VALUES (&, "text &");/'; } | sqlite3 wal.db
    { echo 'PRAGMA synchronous = OFF;'; seq 1 10000 | sed 's/.*/INSERT INTO t VALUES (&, "text &");/'; } | sqlite3 roll.db
    for db in wal.db roll.db; do
        test "$(sqlite3 "$db" 'PRAGMA integrity_check')" = ok
        test "$(sqlite3 "$db" 'SELECT count(*) FROM t')" = 10000
    done
}

check() {
    for db in wal.db roll.db; do
        test "$(sqlite3 "$db" 'PRAGMA integrity_check')" = ok
        test "$(sqlite3 "$db" 'SELECT sum(id) FROM t')" = 50005000
    done
}
