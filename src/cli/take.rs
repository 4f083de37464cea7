//! `--take SIDE[:PATH]`: which side wins a conflict.

use super::context::Opened;
use super::paths;
use crate::base::{Error, RelPath, Result, quote};
use crate::review::{self, Conflict, Settled, Why};
use crate::session::Session;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A side, and where it is taken: everywhere when there is no place.
pub(super) struct Side {
    session: bool,
    place: Option<(u16, RelPath)>,
}

/// What the values of `--take` say of the changes `set`.
///
/// # Errors
/// `Usage` for a word that is no side, or a path outside of all roots or with no change at or beneath it.
pub(super) fn sides(session: &Session, args: &[OsString], set: &[Settled]) -> Result<Vec<Side>> {
    args.iter()
        .map(|arg| {
            let bytes = arg.as_bytes();
            let cut = bytes.iter().position(|&b| b == b':');
            let (word, path) = match cut {
                Some(at) => (&bytes[..at], Some(Path::new(OsStr::from_bytes(&bytes[at + 1..])))),
                None => (bytes, None),
            };
            let takes_session = match word {
                b"session" => true,
                b"real" => false,
                _ => {
                    let shown = quote(bytes);
                    return Err(Error::usage(format!("{shown} names no side"))
                        .hint("say session or real, for one path session:PATH or real:PATH"));
                }
            };
            let place = path.map(|path| paths::changed(session, path, set)).transpose()?;
            Ok(Side { session: takes_session, place })
        })
        .collect()
}

/// All conflicts of `set`; files with the markers of an earlier merge are among them.
pub(super) fn conflicts(opened: &Opened, set: &[Settled]) -> Result<Vec<Conflict>> {
    let mut all = super::rebase::conflicts(opened, set)?;
    for s in set {
        let (root, path) = (s.change.root, &s.change.path);
        let known = all.iter().any(|c| c.root == root && c.path == *path);
        if !known && review::has_markers(&opened.roots, s)? {
            all.push(Conflict { root, path: path.clone(), why: Why::Markers });
        }
    }
    Ok(all)
}

/// Conflicts by what was chosen.
pub(super) struct Taken {
    /// Changes to be discarded: the real tree wins.
    pub(super) real: Vec<(u16, RelPath)>,
    /// Conflicts that nothing was chosen for, or whose session's side cannot win.
    pub(super) left: Vec<Conflict>,
    /// Those of them whose session's side was chosen and cannot win.
    pub(super) only_real: Vec<(u16, RelPath)>,
}

/// Chooses; of several sides that name a path, the last one counts.
pub(super) fn choose(conflicts: Vec<Conflict>, sides: &[Side], set: &[Settled]) -> Taken {
    let mut taken = Taken { real: Vec::new(), left: Vec::new(), only_real: Vec::new() };
    for c in conflicts {
        let names = |side: &&Side| {
            let beneath = |(root, path): &(u16, RelPath)| *root == c.root && c.path.starts_with(path);
            side.place.as_ref().is_none_or(beneath)
        };
        let side = sides.iter().rev().find(names).map(|side| side.session);
        let at = set.binary_search_by(|s| (s.change.root, &s.change.path).cmp(&(c.root, &c.path)));
        let can_win = at.is_ok_and(|i| review::session_can_win(&set[i], &c.why));
        match side {
            Some(false) => taken.real.push((c.root, c.path)),
            Some(true) if can_win => {}
            Some(true) => {
                taken.only_real.push((c.root, c.path.clone()));
                taken.left.push(c);
            }
            None => taken.left.push(c),
        }
    }
    taken
}
