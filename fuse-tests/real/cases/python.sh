export PIP_NO_INDEX=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1

# A wheel is a zip with metadata: made by hand, so that nothing need be fetched.
setup() {
    python3 - <<'PY'
import zipfile
with zipfile.ZipFile("demo_pkg-1.0-py3-none-any.whl", "w") as z:
    z.writestr("demo_pkg/__init__.py", "def hello():\n    return 'hello from the wheel'\n")
    info = "demo_pkg-1.0.dist-info/"
    z.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: demo-pkg\nVersion: 1.0\n")
    z.writestr(info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    z.writestr(info + "entry_points.txt", "[console_scripts]\ndemo = demo_pkg:hello\n")
    z.writestr(info + "RECORD", "")
PY
}

work() {
    python3 -m venv venv
    ./venv/bin/pip install -q ./demo_pkg-1.0-py3-none-any.whl
    ./venv/bin/python -c 'import demo_pkg; assert demo_pkg.hello() == "hello from the wheel"'
}

check() {
    ./venv/bin/python -c 'import demo_pkg; assert demo_pkg.hello() == "hello from the wheel"'
    ./venv/bin/pip check
}
