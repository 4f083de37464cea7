//! The program: parse, dispatch, exit code.

fn main() -> std::process::ExitCode {
    sbx_fuse::cli::main()
}
