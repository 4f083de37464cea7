export CARGO_NET_OFFLINE=true CARGO_INCREMENTAL=0 CARGO_TERM_COLOR=never

setup() {
    mkdir -p app/src app/vendor/left/src app/vendor/right/src app/.cargo
    cat > app/Cargo.toml <<'TOML'
[package]
name = "app"
version = "0.1.0"
edition = "2021"
[dependencies]
left = "1"
right = "2"
TOML
    cat > app/.cargo/config.toml <<'TOML'
[source.crates-io]
replace-with = "vendored-sources"
[source.vendored-sources]
directory = "vendor"
TOML
    for dep in left:1.0.0 right:2.0.0; do
        name=${dep%%:*}
        printf '[package]\nname = "%s"\nversion = "%s"\nedition = "2021"\n' "$name" "${dep#*:}" \
            > "app/vendor/$name/Cargo.toml"
        printf '{"files":{},"package":null}' > "app/vendor/$name/.cargo-checksum.json"
        printf 'pub fn side() -> &%sstatic str { "%s" }\n' "'" "$name" > "app/vendor/$name/src/lib.rs"
    done
    cat > app/src/main.rs <<'RUST'
fn main() {
    println!("{} {}", left::side(), right::side());
}
#[test]
fn both_sides() {
    assert_ne!(left::side(), right::side());
}
RUST
}

work() {
    cd app
    cargo build -q
    test "$(./target/debug/app)" = 'left right'
    cargo test -q
    # A cache that cargo writes in random order.
    rm -f target/.rustc_info.json
}

check() {
    cd app
    test "$(./target/debug/app)" = 'left right'
    # What cargo built in the sandbox is fresh for cargo outside of it.
    cargo build -v 2>&1 | grep -q 'Fresh app'
}
