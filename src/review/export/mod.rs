//! Changes in forms that other programs take: patches for git, archives, image layers.

mod archive;
mod base85;
mod patch;

pub use archive::{Form, archive};
pub use patch::patch;

use crate::base::{Error, ErrorKind};

fn write_failed(e: std::io::Error) -> Error {
    match e.kind() {
        std::io::ErrorKind::BrokenPipe => Error::new(ErrorKind::BrokenPipe, "nobody reads the export"),
        _ => Error::sys("write the export", e),
    }
}
