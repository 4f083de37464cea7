//! Rules outside of the roots, as mounts of bwrap.
//!
//! A directory in which a name must not be, now or later, is covered by an empty one, and everything else that it holds
//! is bound into that, one by one; nothing is made on the host. What is there when the command starts is what it sees in
//! such a directory: what comes later, hidden or not, it does not see.

use crate::base::{Access, Error, Result, Rules, Spot, quote};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Entries of covered directories altogether; bwrap takes at most 9000 words.
const MOST: usize = 2400;

/// One step, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// An empty directory with these permissions over the one at this path; read-only once all is in place.
    Cover(PathBuf, u32),
    /// The object at this path, where a cover has taken it away.
    Bind(PathBuf),
    /// A symlink, likewise: where it is and where it leads.
    Link(PathBuf, PathBuf),
    /// A directory at this path that nobody can look into.
    DeniedDir(PathBuf),
    /// Something else at this path that nobody can open.
    DeniedFile(PathBuf),
}

/// What must be mounted so that `rules` hold; `elsewhere` says of a directory that it is none of ours: a root, or
/// private to the sandbox.
///
/// # Errors
/// `Usage` for a rule that cannot be held outside of roots.
pub(super) fn steps(rules: &Rules, elsewhere: &dyn Fn(&Path) -> bool) -> Result<Vec<Step>> {
    let mut veil = Veil { rules, elsewhere, steps: Vec::new(), bound: 0 };
    if let Some(spot) = rules.top() {
        veil.visit(Path::new("/"), &spot)?;
    }
    Ok(veil.steps)
}

struct Veil<'a> {
    rules: &'a Rules,
    elsewhere: &'a dyn Fn(&Path) -> bool,
    steps: Vec<Step>,
    bound: usize,
}

impl Veil<'_> {
    fn visit(&mut self, dir: &Path, spot: &Spot) -> Result<()> {
        if (self.elsewhere)(dir) {
            return Ok(());
        }
        let shown = quote(dir.as_os_str().as_bytes());
        let next = self.rules.next_names(spot);
        if next.deep {
            return Err(Error::usage(format!(
                "a rule with '**' cannot be held in {shown}, outside of the roots"
            ))
            .hint("name the paths without '**', or make the directory a root: --root"));
        }
        let kind = |name: &[u8]| dir.join(std::ffi::OsStr::from_bytes(name)).symlink_metadata().ok();
        let absent = |name: &[u8]| kind(name).is_none();
        let hides = |name: &[u8]| self.rules.step(spot, name).0 == Some(Access::Hide);
        // A symlink has no permissions to take away.
        let no_object = |name: &[u8]| kind(name).is_none_or(|m| m.is_symlink());
        let cover = next.any
            || next.ends.iter().any(|n| hides(n) || (no_object(n) && self.forbids(spot, n)))
            || next.ways.iter().any(|n| absent(n));
        if !cover {
            // Many rules may go on in one directory.
            let names: BTreeSet<&[u8]> = next.ends.iter().chain(&next.ways).copied().collect();
            for name in names {
                self.entry(dir, std::ffi::OsStr::from_bytes(name), spot, false)?;
            }
            return Ok(());
        }
        if dir == Path::new("/") {
            return Err(Error::usage("a rule about names directly in / cannot be held outside of the roots")
                .hint("name a path in a directory that exists"));
        }
        let search =
            crate::sys::file::access_at(nix::fcntl::AT_FDCWD, dir.as_os_str().as_bytes(), libc::X_OK);
        if search == Err(crate::base::Errno::EACCES) {
            return Ok(()); // what we cannot reach, the sandbox cannot either
        }
        let meta =
            dir.symlink_metadata().map_err(|e| Error::on_path("look at", dir.as_os_str().as_bytes(), e))?;
        let entries: Vec<OsString> = std::fs::read_dir(dir)
            .and_then(|all| all.map(|e| e.map(|e| e.file_name())).collect())
            .map_err(|e| {
                Error::on_path("list", dir.as_os_str().as_bytes(), e)
                    .hint(format!("rules about names in {shown} need it to be listed"))
            })?;
        self.bound += entries.len();
        if self.bound > MOST {
            return Err(Error::usage(format!("{shown} has too many entries for a rule about names in it"))
                .hint(format!("make it a root: --root {shown}; or hide less: --show, --hide")));
        }
        self.steps.push(Step::Cover(dir.to_owned(), meta.mode() & 0o7777));
        for name in &entries {
            self.entry(dir, name, spot, true)?;
        }
        Ok(())
    }

    fn forbids(&self, spot: &Spot, name: &[u8]) -> bool {
        self.rules.step(spot, name).0 > Some(Access::ReadOnly)
    }

    /// One entry of a directory; `covered` when it is not there any more unless it is brought back.
    fn entry(&mut self, dir: &Path, name: &std::ffi::OsStr, spot: &Spot, covered: bool) -> Result<()> {
        let path = dir.join(name);
        let Ok(meta) = path.symlink_metadata() else {
            return Ok(()); // just gone, or out of our reach and so of the sandbox's
        };
        let (access, beneath) = self.rules.step(spot, name.as_bytes());
        if access == Some(Access::Hide) || (access == Some(Access::Deny) && meta.is_symlink()) {
            return Ok(());
        }
        if covered {
            self.steps.push(match std::fs::read_link(&path) {
                Ok(target) if meta.is_symlink() => Step::Link(path.clone(), target),
                _ => Step::Bind(path.clone()),
            });
        }
        match (access, beneath) {
            (Some(Access::Deny), _) if meta.is_dir() => self.steps.push(Step::DeniedDir(path)),
            (Some(Access::Deny), _) => self.steps.push(Step::DeniedFile(path)),
            (_, Some(spot)) if meta.is_dir() => self.visit(&path, &spot)?,
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Pattern, Rule};
    use std::fs;

    fn rules(home: &Path, all: &[(&str, Access)]) -> Rules {
        let rule = |(text, access): &(&str, Access)| Rule {
            pattern: Pattern::new(home, text).unwrap(),
            access: *access,
        };
        Rules::new(all.iter().map(rule).collect())
    }

    fn names(steps: &[Step], home: &Path) -> Vec<String> {
        let rel = |p: &Path| p.strip_prefix(home).unwrap().to_str().unwrap().to_owned();
        let mut all: Vec<String> = steps
            .iter()
            .map(|s| match s {
                Step::Cover(p, mode) => format!("cover {} {mode:o}", rel(p)),
                Step::Bind(p) => format!("bind {}", rel(p)),
                Step::Link(p, to) => format!("link {} {}", rel(p), to.display()),
                Step::DeniedDir(p) | Step::DeniedFile(p) => format!("deny {}", rel(p)),
            })
            .collect();
        all.sort();
        all
    }

    #[test]
    fn covers_only_where_a_name_must_not_appear() {
        let tmp = tempfile::tempdir().unwrap();
        let home = tmp.path().canonicalize().unwrap();
        for dir in [".config/gh", ".config/git", "src/p", "den"] {
            fs::create_dir_all(home.join(dir)).unwrap();
        }
        fs::write(home.join("f"), "").unwrap();
        std::os::unix::fs::symlink("src", home.join("l")).unwrap();
        fs::set_permissions(home.join(".config"), std::os::unix::fs::PermissionsExt::from_mode(0o750))
            .unwrap();
        let none = |_: &Path| false;
        let all = rules(&home, &[(".config/gh", Access::Hide), ("den", Access::Deny), ("f", Access::Deny)]);
        let got = names(&steps(&all, &none).unwrap(), &home);
        assert_eq!(got, ["bind .config/git", "cover .config 750", "deny den", "deny f"]);
        // A name that is not there yet: the nearest directory that is must not get it.
        let all = rules(&home, &[("no/where", Access::Hide), (".config/gh", Access::Hide)]);
        let home_mode = fs::symlink_metadata(&home).unwrap().mode() & 0o7777;
        let got = names(&steps(&all, &none).unwrap(), &home);
        let cover = format!("cover  {home_mode:o}");
        let mut want = vec!["bind .config", "bind .config/git", "bind den", "bind f", "bind src", &cover];
        want.extend(["cover .config 750", "link l src"]);
        assert_eq!(got, want);
        let in_root = |p: &Path| p == home;
        assert_eq!(steps(&all, &in_root).unwrap(), []);
    }

    #[test]
    fn what_cannot_be_held_is_refused() {
        let tmp = tempfile::tempdir().unwrap();
        let home = tmp.path().canonicalize().unwrap();
        let none = |_: &Path| false;
        assert!(steps(&rules(&home, &[("**/x", Access::Hide)]), &none).unwrap_err().message.contains("**"));
        assert!(steps(&rules(Path::new("/"), &[("nosuch/x", Access::Hide)]), &none).is_err());
        for i in 0..=MOST {
            fs::write(home.join(i.to_string()), "").unwrap();
        }
        assert!(
            steps(&rules(&home, &[("x", Access::Hide)]), &none).unwrap_err().message.contains("too many")
        );
    }
}
