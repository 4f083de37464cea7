//! A server in the background: the command that starts it waits until its mount answers.

use super::output::{self, Out};
use crate::base::{Error, Result, quote};
use crate::sys::descriptors;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// What the server tells the command that started it: one line of JSON on its stdout.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Word {
    Ready,
    Failed { exit: u8, text: String },
}

/// Starts a server, which is to call [`answer`], and waits for its word; gives the exit code.
///
/// # Errors
/// When it cannot be started or ends without a word; what it said then is in `log`.
pub(super) fn start(mut command: Command, log: Option<&Path>) -> Result<u8> {
    // A lock or a pipe of our caller's would be held as long as the mount is there.
    descriptors::pass_on_nothing().map_err(|e| Error::sys("keep what is open to ourselves", e))?;
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|e| Error::sys("start the server", e))?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line).map_err(|e| Error::sys("hear from the server", e))?;
    }
    match serde_json::from_str(&line) {
        Ok(Word::Ready) => Ok(0),
        Ok(Word::Failed { exit, text }) => {
            child.wait().map_err(|e| Error::sys("wait for the server", e))?;
            output::note(&text);
            Ok(exit)
        }
        Err(_) => {
            let status = child.wait().map_err(|e| Error::sys("wait for the server", e))?;
            let e = Error::failure(format!("the server ended before the mount answered: {status}"));
            Err(match log {
                Some(log) => e.hint(format!("what it said is in {}", quote(log.as_os_str().as_bytes()))),
                None => e,
            })
        }
    }
}

/// The server's side: `serve` calls what it gets when the mount answers. A failure before that goes to the command
/// that waits.
///
/// # Errors
/// What `serve` returns after the mount answered, or when the terminal cannot be left.
pub(super) fn answer(serve: impl FnOnce(&mut dyn FnMut()) -> Result<u8>) -> Result<u8> {
    crate::sys::process::setsid().map_err(|e| Error::sys("leave the terminal", e))?;
    let mut said = false;
    let done = serve(&mut || {
        said = true;
        say(&Word::Ready);
    });
    match done {
        Err(e) if !said => {
            say(&Word::Failed { exit: e.kind.exit_code(), text: e.to_string() });
            Ok(e.kind.exit_code())
        }
        other => other,
    }
}

/// If nobody hears it any more, the server goes on all the same.
fn say(word: &Word) {
    let mut out = Out::new();
    if let Err(e) = out.json_line(word).and_then(|()| out.flush()) {
        tracing::warn!("nobody waits for the mount: {e}");
    }
    // The reader is to see the end of the pipe, which the server outlives.
    match std::fs::OpenOptions::new().write(true).open("/dev/null") {
        Ok(null) => {
            if let Err(e) = nix::unistd::dup2_stdout(&null) {
                tracing::warn!("stdout stays open: {e}");
            }
        }
        Err(e) => tracing::warn!("stdout stays open: {e}"),
    }
}
