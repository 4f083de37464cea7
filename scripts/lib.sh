# Shared by the scripts: what this host needs, and how to get it. Source it; it has no effect by itself.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Where cargo puts a release build.
release=$(cd "$here" && realpath -m "${CARGO_TARGET_DIR:-target}")/release

say() { printf '==> %s\n' "$*" >&2; }

# install PACKAGE...: by apt, or says what to install where there is no apt.
install() {
    local sudo=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null 2>&1 || { say "please install: $*"; return 1; }
        sudo=(sudo)
    fi
    if ! command -v apt-get >/dev/null 2>&1; then
        say "please install (by their Debian names): $*"
        return 1
    fi
    say "installing $*"
    local apt=("${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get)
    "${apt[@]}" install -y -qq "$@" >/dev/null 2>&1 && return 0
    "${apt[@]}" update -qq && "${apt[@]}" install -y -qq "$@" >/dev/null
}

# need PROGRAM=PACKAGE...: installs the packages whose program is missing.
need() {
    local missing=() pair
    for pair in "$@"; do
        command -v "${pair%%=*}" >/dev/null 2>&1 || missing+=("${pair#*=}")
    done
    [ ${#missing[@]} -eq 0 ] || install "${missing[@]}"
}

# Every distribution lets all users open /dev/fuse; some minimal machines do not.
open_fuse_device() {
    if [ ! -e /dev/fuse ]; then
        say "/dev/fuse is missing: load the fuse module (modprobe fuse)"
        return 1
    fi
    if [ "$(id -u)" -eq 0 ] && [ "$(stat -c %a /dev/fuse)" != 666 ]; then
        chmod 0666 /dev/fuse
    fi
}

# The tests run the product as a person without privileges; root makes one for them.
test_user() {
    [ "$(id -u)" -eq 0 ] || return 0
    id sbxtest >/dev/null 2>&1 || useradd --create-home --shell /bin/bash sbxtest
}

find_cargo() {
    command -v cargo >/dev/null 2>&1 && return 0
    if [ -x "$HOME/.cargo/bin/cargo" ]; then
        PATH="$HOME/.cargo/bin:$PATH"
        export PATH
        return 0
    fi
    say "Rust is missing: install it from https://rustup.rs or with your package manager"
    return 1
}
