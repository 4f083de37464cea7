//! Whether a command can run in the sandbox, found out beforehand, so that the exit code is the one a shell gives.

use super::bwrap::Spec;
use crate::base::{Errno, quote};
use crate::sys::file;
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// As many symlinks as the kernel follows (path_resolution(7)).
const LINKS_MAX: u32 = 40;

/// Why a command cannot run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotRunnable {
    /// 126 for what is there and cannot be executed, 127 for what is not there.
    pub exit: u8,
    /// One sentence.
    pub message: String,
    /// What to do about it, where that is known.
    pub hint: Option<String>,
}

/// Checks that the command of `spec` is an executable file in the sandbox's view, looked up along `path` (the value of
/// `$PATH`) as execvp(3) does.
///
/// # Errors
/// Why it is not.
pub fn check_command(spec: &Spec, path: &OsStr) -> Result<(), NotRunnable> {
    let Some(command) = spec.argv.first().filter(|c| !c.is_empty()) else {
        return Err(not_found(Path::new("")));
    };
    if command.as_bytes().contains(&b'/') {
        let at = spec.cwd.join(command);
        return check_file(spec, &at).map_err(|e| told(spec, &at, command, e));
    }
    let mut refused = None;
    for dir in std::env::split_paths(path) {
        let at = spec.cwd.join(dir).join(command);
        match check_file(spec, &at) {
            Ok(()) => return Ok(()),
            // A directory that may not be searched is passed over, a file that may not be executed is remembered.
            Err(Errno::EACCES) if resolve(spec, &at).is_ok() => refused = Some(at),
            Err(_) => {}
        }
    }
    match refused {
        Some(at) => Err(told(spec, &at, command, Errno::EACCES)),
        None => Err(not_found(Path::new(command))),
    }
}

fn told(spec: &Spec, at: &Path, command: &OsStr, e: Errno) -> NotRunnable {
    if matches!(e, Errno::ENOENT | Errno::ENOTDIR) {
        let mut answer = not_found(Path::new(command));
        if !spec.sees(at) && at.symlink_metadata().is_ok() {
            let shown = quote(at.as_os_str().as_bytes());
            answer.hint = Some(format!(
                "{shown} lies in a directory that is private in the sandbox; make its directory a root with --root"
            ));
        }
        return answer;
    }
    let shown = quote(command.as_bytes());
    NotRunnable { exit: 126, message: format!("cannot run {shown}: {e}"), hint: None }
}

fn not_found(command: &Path) -> NotRunnable {
    let shown = quote(command.as_os_str().as_bytes());
    NotRunnable { exit: 127, message: format!("{shown}: command not found"), hint: None }
}

/// Whether the object the sandbox sees at `path` can be executed.
fn check_file(spec: &Spec, path: &Path) -> Result<(), Errno> {
    let host = resolve(spec, path)?;
    let meta = host.symlink_metadata().map_err(Errno::from)?;
    if !meta.is_file() {
        return Err(Errno::EACCES);
    }
    file::access_at(nix::fcntl::AT_FDCWD, host.as_os_str().as_bytes(), libc::X_OK)?;
    if let Some(interpreter) = interpreter(&host) {
        // A script whose interpreter is missing fails with ENOENT too (execve(2)).
        resolve(spec, &spec.cwd.join(interpreter))?;
    }
    Ok(())
}

/// The path after `#!`, if the file is a readable script.
fn interpreter(host: &Path) -> Option<PathBuf> {
    let mut head = Vec::new();
    std::fs::File::open(host).ok()?.take(256).read_to_end(&mut head).ok()?;
    let line = head.strip_prefix(b"#!")?.split(|&b| b == b'\n').next()?;
    let word = line.trim_ascii().split(|b| b" \t".contains(b)).next()?;
    (!word.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(word)))
}

/// Where the host finds the object that `path`, absolute, leads to in the sandbox, all symlinks followed there.
fn resolve(spec: &Spec, path: &Path) -> Result<PathBuf, Errno> {
    let mut links = 0;
    let mut at = PathBuf::from("/");
    let mut todo: Vec<PathBuf> = vec![path.to_owned()];
    while let Some(next) = todo.pop() {
        let mut parts = next.components();
        let Some(part) = parts.next() else { continue };
        let rest = parts.as_path().to_owned();
        match part {
            Component::RootDir => at = PathBuf::from("/"),
            Component::ParentDir => {
                at.pop();
            }
            Component::CurDir | Component::Prefix(_) => {}
            Component::Normal(name) => {
                let here = at.join(name);
                let host = spec.host_path(&here);
                // A directory that holds a root exists in the sandbox, private or not.
                let made = spec.binds.iter().any(|b| b.to.starts_with(&here));
                let link = match &host {
                    Some(host) if !made => host.symlink_metadata().map_err(Errno::from)?.is_symlink(),
                    None if !made => return Err(Errno::ENOENT),
                    _ => false,
                };
                if let (true, Some(host)) = (link, &host) {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(Errno::ELOOP);
                    }
                    todo.push(rest);
                    todo.push(std::fs::read_link(host).map_err(Errno::from)?);
                    continue;
                }
                at = here;
            }
        }
        todo.push(rest);
    }
    spec.host_path(&at).ok_or(Errno::ENOENT)
}

#[cfg(test)]
mod tests {
    use super::super::bwrap::Bind;
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn write(path: &Path, text: &str, mode: u32) {
        std::fs::write(path, text).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    fn try_run(view: &Path, cwd: &str, path: &str, command: &str) -> Result<(), u8> {
        let spec = Spec {
            binds: vec![Bind { from: view.to_owned(), to: "/opt/project-of-a-test".into() }],
            hidden: vec![],
            hidden_in_view: vec![],
            masked: vec![],
            cwd: cwd.into(),
            net: false,
            env: vec![],
            argv: vec![command.into()],
        };
        check_command(&spec, OsStr::new(path)).map_err(|e| e.exit)
    }

    #[test]
    fn commands_are_looked_up_in_the_view() {
        let tmp = tempfile::tempdir().unwrap();
        let view = tmp.path();
        write(&view.join("tool"), "#!/bin/sh\n", 0o755);
        write(&view.join("plain"), "x", 0o644);
        write(&view.join("script"), "#!/nonexistent/x\n", 0o755);
        symlink("/opt/project-of-a-test/tool", view.join("alink")).unwrap();
        symlink("loop", view.join("loop")).unwrap();
        std::fs::create_dir(view.join("dir")).unwrap();
        let root = "/opt/project-of-a-test";
        assert_eq!(try_run(view, root, "/bin", "./tool"), Ok(()));
        assert_eq!(try_run(view, root, "/bin", "alink"), Err(127));
        assert_eq!(try_run(view, root, "/bin:.", "alink"), Ok(()));
        assert_eq!(try_run(view, root, "/bin", "dir/../alink"), Ok(()));
        assert_eq!(try_run(view, root, "/bin", "./plain"), Err(126));
        assert_eq!(try_run(view, root, "/bin:.", "plain"), Err(126));
        assert_eq!(try_run(view, root, "/bin", "./dir"), Err(126));
        assert_eq!(try_run(view, root, "/bin", "./script"), Err(127));
        assert_eq!(try_run(view, root, "/bin", "./loop"), Err(126));
        assert_eq!(try_run(view, root, "/bin", "./nothing"), Err(127));
        assert_eq!(try_run(view, "/", "/bin", "sh"), Ok(()));
        assert_eq!(try_run(view, "/", "/bin", ""), Err(127));
    }
}
