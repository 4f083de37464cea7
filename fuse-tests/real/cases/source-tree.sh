setup() {
    python3 - <<'PY'
import io, tarfile
with tarfile.open("source.tar", "w") as tar:
    def add(info, data=b""):
        info.mtime = 1700000000 + len(info.name)
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
    # 20,400 files in 205 directories; "arch" is the largest, "sound" is for removal.
    for top, dirs in (("arch", 80), ("drivers", 70), ("fs", 30), ("sound", 24)):
        for d in range(dirs):
            name = f"src/{top}/part{d:03d}"
            info = tarfile.TarInfo(name); info.type = tarfile.DIRTYPE; info.mode = 0o755; add(info)
            for f in range(100):
                info = tarfile.TarInfo(f"{name}/file{f:03d}.c")
                info.mode = 0o755 if f % 17 == 0 else 0o644
                add(info, f"/* {top} {d} {f} */\nint value = {d * f};\nint other = 1;\n".encode() * (1 + f % 5))
    link = tarfile.TarInfo("src/link"); link.type = tarfile.SYMTYPE; link.linkname = "fs/part000/file000.c"; add(link)
    hard = tarfile.TarInfo("src/hard"); hard.type = tarfile.LNKTYPE; hard.linkname = "src/fs/part001/file001.c"; add(hard)
PY
    mkdir before
    tar -xf source.tar -C before
}

work() {
    tar -xf source.tar
    # On what was just made, and on what was there before.
    for tree in src before/src; do
        find "$tree/drivers" -name 'file00[0-9].c' | sort | head -800 | xargs sed -i 's/value/quantity/'
        mv "$tree/arch" "$tree/architectures"
        rm -rf "$tree/sound"
    done
    find src before | wc -l
}

check() {
    test "$(grep -rl quantity src/drivers | wc -l)" = 700
    test "$(find src/architectures -type f | wc -l)" = 8000
    test ! -e before/src/arch
    test ! -e before/src/sound
}
