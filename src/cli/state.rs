//! What a session is doing, why, and what to do about it.

use crate::base::Result;
use crate::session::{Holder, Role, Session};
use serde::Serialize;

/// What a session is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    /// A command runs in it.
    Running,
    /// It is mounted for people to use.
    Mounted,
    /// Nobody has it.
    Resting,
    /// Its files are in an archive.
    Archived,
    /// It cannot be read or used.
    Broken,
}

/// A state with its reason and the way out of it, half a sentence each.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Told {
    /// The state.
    pub(super) state: State,
    /// The process id of its server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pid: Option<i32>,
    /// Why it is in that state.
    pub(super) why: String,
    /// What leads out of it.
    pub(super) way_out: String,
}

impl State {
    /// The word for it.
    pub(super) fn word(self) -> &'static str {
        match self {
            State::Running => "running",
            State::Mounted => "mounted",
            State::Resting => "resting",
            State::Archived => "archived",
            State::Broken => "broken",
        }
    }
}

impl Told {
    /// The state of a session.
    ///
    /// # Errors
    /// When its lock file cannot be opened.
    pub(super) fn of(session: &Session) -> Result<Told> {
        let name = &session.name;
        let holder: Option<Holder> = session.holder()?.filter(|h| h.role == Role::Server);
        let pid = holder.as_ref().map(|h| h.pid);
        let told = |state, why: String, way_out: String| Told { state, pid, why, way_out };
        if let Some(archive) = &session.archived {
            return Ok(match archive.on_disk() {
                Some(_) => told(
                    State::Archived,
                    "its files are in an archive".into(),
                    format!("bring it back with: sbx-fuse restore {name}"),
                ),
                None => told(
                    State::Broken,
                    "its archive is gone".into(),
                    format!("throw it away with: sbx-fuse rm {name}"),
                ),
            });
        }
        Ok(match (&holder, &session.meta.mountpoint) {
            (Some(_), Some(at)) => told(
                State::Mounted,
                format!("it is mounted at {at}"),
                format!("end it with: sbx-fuse stop {name}"),
            ),
            (Some(_), None) => {
                let words: Vec<String> = session.meta.command.iter().map(|w| w.to_string()).collect();
                told(
                    State::Running,
                    format!("it runs {}", words.join(" ")),
                    format!("wait for its end, or end it with: sbx-fuse stop {name}"),
                )
            }
            (None, at) => match lost(session) {
                Some((why, way_out)) => told(State::Broken, why, way_out),
                None if at.is_some() => told(
                    State::Resting,
                    "its server died".into(),
                    format!("any command repairs it, e.g.: sbx-fuse verify -s {name}"),
                ),
                None => told(
                    State::Resting,
                    "no command runs in it".into(),
                    format!("go on with: sbx-fuse exec {name} -- CMD"),
                ),
            },
        })
    }

    /// Of a session whose `meta.json` says nothing, because of `why`.
    pub(super) fn unreadable(name: &str, why: String) -> Told {
        let way_out = format!("throw it away with: sbx-fuse rm {name}");
        Told { state: State::Broken, pid: None, why, way_out }
    }
}

/// The way out for a session whose root is not there.
pub(super) fn put_back(name: &str) -> String {
    format!("put it back, or throw the session away with: sbx-fuse rm {name}")
}

/// What a session cannot do without and that is not there, and the way out.
fn lost(session: &Session) -> Option<(String, String)> {
    let e = session.roots().find_map(|root| root.open_lower().err())?;
    let way_out = e.hint.unwrap_or_else(|| put_back(&session.name));
    Some((e.message, way_out))
}
