//! Which real directories a session is about.

use crate::base::{Error, Result, quote};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A real directory that a session shall have, and its name in a mount of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenRoot {
    /// Canonical absolute path.
    pub path: PathBuf,
    /// The name of its top-level directory.
    pub name: Vec<u8>,
    /// Whether what is written there stays the session's and is shown by no review.
    pub private: bool,
}

/// The roots a person named, made canonical; where none is named, the git work tree that encloses `cwd`, else `cwd`
/// itself. `state` is the state directory, in which no root may lie.
///
/// # Errors
/// `Usage` for a root that is no directory, lies in another one, is named twice, belongs to the kernel, or is `/` or
/// the home directory without having been named.
pub fn choose(named: &[PathBuf], cwd: &Path, home: Option<&Path>, state: &Path) -> Result<Vec<ChosenRoot>> {
    let home = home.and_then(|h| h.canonicalize().ok());
    let mut roots: Vec<ChosenRoot> = Vec::new();
    let paths = if named.is_empty() {
        vec![default_root(cwd, home.as_deref())?]
    } else {
        named.iter().map(|p| canonical(&cwd.join(p))).collect::<Result<_>>()?
    };
    let state = state.canonicalize().unwrap_or_else(|_| state.to_owned());
    for path in paths {
        check_place(&path, &state)?;
        for other in &roots {
            check_apart(&other.path, &path)?;
        }
        let name = unique_name(&path, &roots);
        roots.push(ChosenRoot { path, name, private: false });
    }
    if roots.len() > usize::from(u16::MAX) {
        return Err(Error::usage("too many roots").hint("name directories that hold several of them"));
    }
    Ok(roots)
}

/// What becomes of what a session writes in the home directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// It has a home of its own, and XDG directories, in which the person's files show.
    Private,
    /// The home is one more root.
    Reviewed,
}

impl std::str::FromStr for Home {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Home, String> {
        match text {
            "private" => Ok(Home::Private),
            "reviewed" => Ok(Home::Reviewed),
            _ => Err("write private or reviewed".into()),
        }
    }
}

/// Adds the home directory to `roots`, which may lie in it; of a private one also those of `xdg` that lie elsewhere.
///
/// # Errors
/// `Usage` when there is no home or it lies in a root.
pub fn add_home(
    roots: &mut Vec<ChosenRoot>,
    mode: Home,
    home: Option<&Path>,
    xdg: &[PathBuf],
    state: &Path,
) -> Result<()> {
    let home = home.ok_or_else(|| {
        Error::usage("--home needs HOME, which is not set").hint("set HOME, or leave --home out")
    })?;
    let state = state.canonicalize().unwrap_or_else(|_| state.to_owned());
    let elsewhere = if mode == Home::Private { xdg } else { &[] };
    for (i, named) in std::iter::once(home).chain(elsewhere.iter().map(PathBuf::as_path)).enumerate() {
        let path = match canonical(named) {
            Err(_) if i > 0 => continue, // an XDG directory that is not there is not missed
            other => other?,
        };
        let around = roots.iter().find(|r| path.starts_with(&r.path));
        match around {
            Some(_) if i > 0 => continue,
            Some(root) => {
                return Err(Error::usage(format!(
                    "the home directory lies in the root {}, so that --home has nothing to do",
                    quote(root.path.as_os_str().as_bytes())
                ))
                .hint("leave --home out, or name a project's directory: --root DIR"));
            }
            None => {}
        }
        if path == Path::new("/") {
            return Err(Error::usage("the home directory is /, which --home cannot take")
                .hint("leave --home out, or set HOME"));
        }
        check_place(&path, &state)?;
        let name = unique_name(&path, roots);
        roots.push(ChosenRoot { path, name, private: mode == Home::Private });
    }
    Ok(())
}

fn canonical(path: &Path) -> Result<PathBuf> {
    let shown = path.as_os_str().as_bytes();
    let told = |e| usage(Error::on_path("use the root", shown, e).hint(ANOTHER));
    let real = path.canonicalize().map_err(told)?;
    let meta = real.symlink_metadata().map_err(told)?;
    if !meta.is_dir() {
        return Err(Error::usage(format!("the root {} is not a directory", quote(shown)))
            .hint("name the directory that it lies in"));
    }
    Ok(real)
}

fn usage(mut e: Error) -> Error {
    e.kind = crate::base::ErrorKind::Usage;
    e
}

fn default_root(cwd: &Path, home: Option<&Path>) -> Result<PathBuf> {
    let cwd = canonical(cwd)?;
    let too_wide = |dir: &Path| dir == Path::new("/") || Some(dir) == home;
    // A home directory that is itself a git work tree (dotfiles) is as wide as any.
    let tree = cwd.ancestors().take_while(|dir| !too_wide(dir)).find(|dir| holds_git(dir));
    if let Some(tree) = tree {
        return Ok(tree.to_owned());
    }
    if too_wide(&cwd) {
        let what = if Some(cwd.as_path()) == home { "your home directory" } else { "/" };
        return Err(Error::usage(format!(
            "the current directory is {what}, which is a root only when named"
        ))
        .hint("change to a project's directory, or name what you mean: --root DIR"));
    }
    Ok(cwd)
}

/// Whether `dir` is the top of a git work tree: it holds `.git`, a directory or (worktree, submodule) a file.
fn holds_git(dir: &Path) -> bool {
    dir.join(".git").symlink_metadata().is_ok_and(|m| m.is_dir() || m.is_file())
}

const ANOTHER: &str = "name another directory: --root DIR";

pub(super) fn check_place(path: &Path, state: &Path) -> Result<()> {
    let shown = quote(path.as_os_str().as_bytes());
    for kernels in ["/proc", "/sys", "/dev"] {
        // /dev/shm is an ordinary file system of the users'.
        if path.starts_with(kernels) && !path.starts_with("/dev/shm") {
            return Err(Error::usage(format!(
                "the root {shown} lies in {kernels}, which holds no real files"
            ))
            .hint(ANOTHER));
        }
    }
    if path.starts_with(state) {
        return Err(Error::usage(format!(
            "the root {shown} lies in {}, where sbx-fuse keeps its sessions",
            quote(state.as_os_str().as_bytes())
        ))
        .hint(ANOTHER));
    }
    Ok(())
}

/// Roots may lie in one another (the home around a project), but none is there twice.
pub(super) fn check_distinct(a: &Path, b: &Path) -> Result<()> {
    if a == b { check_apart(a, b) } else { Ok(()) }
}

fn check_apart(a: &Path, b: &Path) -> Result<()> {
    let show = |p: &Path| quote(p.as_os_str().as_bytes());
    if a == b {
        return Err(Error::usage(format!("the root {} is named twice", show(a))).hint("name it once"));
    }
    let (outer, inner) = if b.starts_with(a) {
        (a, b)
    } else if a.starts_with(b) {
        (b, a)
    } else {
        return Ok(());
    };
    Err(Error::usage(format!("the root {} lies in the root {}", show(inner), show(outer)))
        .hint(format!("name only {}", show(outer))))
}

/// The last component of `path`, with `-2`, `-3`… where an earlier root has it already.
fn unique_name(path: &Path, roots: &[ChosenRoot]) -> Vec<u8> {
    let plain = path.file_name().unwrap_or(OsStr::new("root")).as_bytes();
    let mut name = plain.to_vec();
    let mut n = 2;
    while roots.iter().any(|r| r.name == name) {
        let tail = format!("-{n}");
        let room = crate::base::NAME_MAX - tail.len();
        name = [&plain[..plain.len().min(room)], tail.as_bytes()].concat();
        n += 1;
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn pick(named: &[&Path], cwd: &Path, home: &Path) -> Result<Vec<ChosenRoot>> {
        let named: Vec<PathBuf> = named.iter().map(|p| p.to_path_buf()).collect();
        choose(&named, cwd, Some(home), &home.join("state"))
    }

    #[test]
    fn the_default_is_the_git_work_tree_else_the_current_directory() {
        let tmp = tempfile::tempdir().unwrap();
        let home = tmp.path().canonicalize().unwrap();
        let deep = home.join("p/src/deep");
        fs::create_dir_all(&deep).unwrap();
        assert_eq!(pick(&[], &deep, &home).unwrap()[0].path, deep);
        fs::write(home.join("p/.git"), "gitdir: x").unwrap();
        assert_eq!(pick(&[], &deep, &home).unwrap()[0].path, home.join("p"));
    }

    #[test]
    fn home_is_a_root_only_when_named_even_as_a_work_tree() {
        let tmp = tempfile::tempdir().unwrap();
        let home = tmp.path().canonicalize().unwrap();
        fs::create_dir_all(home.join(".git")).unwrap();
        fs::create_dir(home.join("d")).unwrap();
        assert!(pick(&[], &home, &home).is_err());
        assert_eq!(pick(&[], &home.join("d"), &home).unwrap()[0].path, home.join("d"));
        assert_eq!(pick(&[&home], &home, &home).unwrap()[0].path, home);
        assert!(pick(&[], Path::new("/"), &home).is_err());
        assert_eq!(pick(&[Path::new("/")], Path::new("/"), &home).unwrap()[0].name, b"root");
    }

    #[test]
    fn roots_that_touch_are_refused_also_through_symlinks() {
        let tmp = tempfile::tempdir().unwrap();
        let home = tmp.path().canonicalize().unwrap();
        fs::create_dir_all(home.join("a/b")).unwrap();
        fs::create_dir_all(home.join("c/a")).unwrap();
        fs::create_dir_all(home.join("state/s")).unwrap();
        std::os::unix::fs::symlink("a/b", home.join("l")).unwrap();
        let (a, ab, ca, l) = (home.join("a"), home.join("a/b"), home.join("c/a"), home.join("l"));
        assert!(pick(&[&a, &ab], &home, &home).unwrap_err().message.contains("lies in the root"));
        assert!(pick(&[&l, &a], &home, &home).is_err());
        assert!(pick(&[&ab, &l], &home, &home).unwrap_err().message.contains("twice"));
        assert!(pick(&[Path::new("state/s")], &home, &home).is_err());
        assert!(pick(&[Path::new("/proc/self")], &home, &home).is_err());
        let both = pick(&[&a, &ca], &home, &home).unwrap();
        assert_eq!((both[0].name.as_slice(), both[1].name.as_slice()), (&b"a"[..], &b"a-2"[..]));
    }
}
