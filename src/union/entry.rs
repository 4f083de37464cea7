//! What a lookup answers.

use super::node::NodeId;
use crate::base::Attr;
use std::time::Duration;

/// A name that was looked up or made. It counts as one lookup of `id` until that is forgotten.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The node; `attr.ino` is the same number. 0 for a name that is known not to exist.
    pub id: NodeId,
    /// Its attributes.
    pub attr: Attr,
    /// How long the kernel may keep name and attributes.
    pub ttl: Duration,
}
