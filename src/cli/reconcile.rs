//! After a crash: journal and upper made to agree again before anything else is done with the session.

use super::output;
use crate::base::{Error, Result};
use crate::journal::{self, Folded, Journal};
use crate::review::{self, RootDirs};
use crate::session::Session;

/// Folds the journal of a session whose lock is ours; when its last writer did not close it in good order, compares it
/// with the upper first and adds what was lost. `said` gets a sentence on each repair.
///
/// # Errors
/// When journal or upper cannot be read, or the journal cannot be written.
pub(super) fn reconcile(session: &Session, roots: &[RootDirs], said: &mut Vec<String>) -> Result<Folded> {
    let dir = session.journal_dir();
    match dir.join("log").symlink_metadata() {
        Ok(_) => {
            let folded = journal::fold_dir(&dir)?;
            if folded.clean {
                return Ok(folded);
            }
        }
        // Never served; a server makes the log before anything else.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Ok(Folded { clean: true, ..Folded::default() });
        }
        Err(e) => return Err(Error::sys("look at the journal", e)),
    }
    let (journal, opening) = Journal::open(&dir)?;
    said.push("its server ended without closing the journal".into());
    if opening.cut_bytes > 0 {
        let bytes = output::count(usize::try_from(opening.cut_bytes).unwrap_or(usize::MAX), "byte", "bytes");
        said.push(format!("cut {bytes} of an unfinished record off the journal"));
    }
    let added = review::repair(roots, &dir, &journal)?;
    journal.close().map_err(|e| Error::sys("close the journal", e))?;
    said.push(match added {
        0 => "journal and files agree".into(),
        n => format!("noted {} that the journal did not know", output::count(n, "change", "changes")),
    });
    journal::fold_dir(&dir)
}
