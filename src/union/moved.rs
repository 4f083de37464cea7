//! What is known of an object whose names in the real tree others changed.

use super::Union;
use super::lookup::Seen;
use super::node::{Link, LowerDir, Node, Place};
use crate::base::{Attr, Kind, Sys};
use smallvec::smallvec;
use std::sync::Arc;

impl Union {
    /// A directory has one name only; what we knew may be stale when the real tree was rearranged.
    pub(super) fn note_dir_link(&self, node: &Arc<Node>, link: Link, lowers: Arc<[LowerDir]>) {
        let same_link = |p: &Place| p.links.first().is_some_and(|l| l.is_at(&link));
        let place = node.place.read();
        if same_link(&place) && place.lowers == lowers || place.gone || place.links.is_empty() {
            return;
        }
        drop(place);
        let mut place = node.place.write();
        if place.gone || place.links.is_empty() {
            return;
        }
        let before = place.lowers.len();
        if !same_link(&place) {
            // Moved in the real tree: what the upper had at the old name, if anything, is not it any more.
            place.upper = link.upper;
            place.links = smallvec![link];
        }
        place.lowers = lowers;
        drop(place);
        self.fds.forget_all(node.id, before);
        node.touch_entries();
        self.unwatch(node);
    }

    /// A lower object that lost its last name in the merged view has got another in the real tree. (That it was removed
    /// only just now, after it was seen there, shows when one looks again: then the name is gone.)
    pub(super) fn revive(&self, node: &Arc<Node>, link: &Link, attr: &Attr) -> Sys<()> {
        let gone = |p: &Place| !p.upper && (p.gone || (node.kind != Kind::Dir && p.links.is_empty()));
        if !gone(&node.place.read()) {
            return Ok(());
        }
        match self.see_all(&link.parent, link.name.as_bytes())? {
            Seen::Lower(_, now) if (now.dev, now.ino) == (attr.dev, attr.ino) => {}
            Seen::Upper(now) if now.kind == Kind::Dir && node.kind == Kind::Dir => {}
            _ => return Ok(()),
        }
        let mut place = node.place.write();
        if gone(&place) {
            place.gone = false;
            place.ghost = None;
            place.nlink_adj = 0;
            place.upper = link.upper;
            place.links = smallvec![link.clone()];
            drop(place);
            node.touch_entries();
        }
        Ok(())
    }
}
