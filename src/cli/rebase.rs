//! `sbx-fuse rebase`: the session moved onto the real tree as it is now. Also what `apply --merge` does first.

use super::context::{self, Opened};
use super::output::{self, Out};
use super::{Which, paths};
use crate::base::{Error, ErrorKind, Kind, Result, quote};
use crate::journal::{self, Bases, Journal, Op, Record};
use crate::review::{self, Conflict, Rebased, Settled};
use clap::Args;

/// Move the session onto the real files as they are now
///
/// Where the real files changed since the session first changed them, text is merged line by line, and a change of mode or
/// times alone is taken note of. What cannot be merged is listed, stays as it is, and the exit code is 3.
#[derive(Debug, Args)]
pub(super) struct RebaseArgs {
    #[command(flatten)]
    which: Which,
    /// Go on although a root is another directory than the one the session was made on, also one without its files
    #[arg(long)]
    new_root: bool,
}

pub(super) fn run(args: RebaseArgs) -> Result<u8> {
    let mut session = context::select(&args.which)?;
    if args.new_root {
        let lock = session.lock()?;
        session.adopt_lowers(&lock)?;
    }
    let mut opened = Opened::of(session)?;
    let set = opened.settled()?;
    let conflicts = conflicts(&opened, &set)?;
    let moved = move_bases(&mut opened, &set, &conflicts, false)?;
    let n = output::count(moved.solved, "change", "changes");
    let session = &opened.session;
    if moved.left.is_empty() {
        output::note(&format!("session {}: moved {n} onto the real files as they are now", session.name));
        return Ok(0);
    }
    let mut out = Out::new();
    for c in &moved.left {
        let path = quote(&paths::shown(session, c.root, &c.path));
        out.line(&format!("conflict {path}: {}", c.why.sentence()))?;
    }
    out.flush()?;
    let left = output::count(moved.left.len(), "conflict", "conflicts");
    output::note(&format!(
        "session {}: moved {n}; {left} left\nhint: merge by hand with: sbx-fuse apply --merge, or choose a side with \
         --take",
        session.name
    ));
    Ok(ErrorKind::Conflict.exit_code())
}

/// The conflicts of `set`, which is all or a part of the session's changes.
pub(super) fn conflicts(opened: &Opened, set: &[Settled]) -> Result<Vec<Conflict>> {
    let folded = &opened.folded;
    let replaced =
        |root: u16, path: &crate::base::RelPath| folded.replaced.get(&(root, path.clone())).cloned();
    review::check(&opened.roots, set, &replaced)
}

/// What came of moving bases.
pub(super) struct Moved {
    /// How many conflicts are none any more.
    pub(super) solved: usize,
    /// Those that are left as they were.
    pub(super) left: Vec<Conflict>,
    /// Files that hold conflict markers now.
    pub(super) marked: Vec<Conflict>,
}

/// Moves what can be moved of `conflicts`, notes the new bases in the journal, and folds that anew.
pub(super) fn move_bases(
    opened: &mut Opened,
    set: &[Settled],
    conflicts: &[Conflict],
    markers: bool,
) -> Result<Moved> {
    let mut moved = Moved { solved: 0, left: Vec::new(), marked: Vec::new() };
    if conflicts.is_empty() {
        return Ok(moved);
    }
    if opened.live.is_some() {
        return Err(Error::new(
            ErrorKind::Locked,
            format!("session {} is in use: its files cannot be merged meanwhile", opened.session.name),
        )
        .hint("unmount it first, or let its command end"));
    }
    let dir = opened.session.journal_dir();
    let (journal, _) = Journal::open(&dir)?;
    let bases = Bases::open(&dir)?;
    for c in conflicts {
        let at = set.binary_search_by(|s| (s.change.root, &s.change.path).cmp(&(c.root, &c.path)));
        let Some(s) = at.ok().and_then(|i| set.get(i)) else { continue };
        match review::move_base(&opened.roots, s, c, &|hash| bases.get(hash), markers)? {
            Some(rebased) => {
                note(&journal, s, &rebased)?;
                if rebased.marked {
                    moved.marked.push(c.clone());
                } else {
                    moved.solved += 1;
                }
            }
            None => moved.left.push(c.clone()),
        }
    }
    journal.close().map_err(|e| Error::sys("close the journal", e))?;
    opened.folded = journal::fold_dir(&dir)?;
    Ok(moved)
}

/// The journal learns of a base only with the first change of a path: so the path is the same again, then found changed.
fn note(journal: &Journal, s: &Settled, rebased: &Rebased) -> Result<()> {
    let failed = |e| Error::on_path("note in the journal", s.change.path.as_bytes(), e);
    if let (Some(bytes), Some(hash)) = (&rebased.bytes, rebased.base.hash) {
        journal.put_base(bytes, hash).map_err(failed)?;
    }
    let present = Record {
        op: Op::FoundSame,
        root: s.change.root,
        path: s.change.path.clone(),
        path2: None,
        kind: if s.change.kind == Kind::Dir { Kind::Dir } else { s.change.kind },
        base: None,
        base2: None,
        proc: journal.process(std::process::id()),
    };
    journal.append(&present).map_err(failed)?;
    let gone = s.change.what == crate::base::What::Deleted;
    let record = Record {
        op: if gone { Op::FoundGone } else { Op::FoundPresent },
        path2: if gone { None } else { Some(s.real_path.clone().unwrap_or_else(|| s.change.path.clone())) },
        base: Some(rebased.base.clone()),
        ..present
    };
    journal.append(&record).map_err(failed)?;
    Ok(())
}
