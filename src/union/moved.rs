//! What is known of an object whose names in the real tree others changed.

use super::Union;
use super::lookup::Seen;
use super::node::{Ident, Link, LowerDir, Node, Place};
use crate::base::{Attr, Errno, Kind, Name, Sys};
use crate::sys::file;
use smallvec::{SmallVec, smallvec};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Union {
    /// Adds a name to what is known of a non-directory, which is `object` there; the name that a lower-only one was last
    /// seen under comes first, since any other may have gone from the real tree.
    pub(super) fn note_link(&self, node: &Arc<Node>, link: Link, object: &Attr) {
        let kept = |p: &Place| p.gone || p.upper && p.has(link.parent.id, &link.name);
        let place = node.place.read();
        if place.links.first().is_some_and(|l| l.is_at(&link)) || kept(&place) {
            return;
        }
        let only = object.nlink == 1;
        let stale =
            |l: &&Link| l.upper == link.upper && (only || l.upper && !self.is_another_name(l, &link, object));
        let stale: SmallVec<[Link; 1]> = place.links.iter().filter(stale).cloned().collect();
        drop(place);
        let mut place = node.place.write();
        if kept(&place) {
            return;
        }
        place.links.retain(|l| !l.is_at(&link) && !stale.iter().any(|s| s.is_at(l) && s.upper == l.upper));
        if place.upper { place.links.push(link) } else { place.links.insert(0, link) }
    }

    /// Whether `object`, which is at `new` in the upper, is at `known` as well, and that not in the same directory: one gets
    /// a new node when others put another real directory behind it, while the old node, which whoever is in there goes on
    /// with, does not learn where the session moves it. True when that cannot be told.
    fn is_another_name(&self, known: &Link, new: &Link, object: &Attr) -> bool {
        if known.parent.id == new.parent.id {
            return true;
        }
        let same = |a: &Attr, b: &Attr| (a.dev, a.ino) == (b.dev, b.ino);
        let look = || -> Sys<bool> {
            let (dir, new_dir) = (self.upper_dir(&known.parent)?, self.upper_dir(&new.parent)?);
            let found = file::stat_at(dir.as_fd(), known.name.as_bytes())?;
            Ok(same(&found, object) && !same(&file::stat(dir.as_fd())?, &file::stat(new_dir.as_fd())?))
        };
        look().unwrap_or_else(|e| !matches!(e, Errno::ENOENT | Errno::ENOTDIR))
    }

    /// A directory has one name only; what we knew may be stale when the real tree was rearranged.
    pub(super) fn note_dir_link(&self, node: &Arc<Node>, link: Link, lowers: Arc<[LowerDir]>) -> Sys<()> {
        let at_link = |p: &Place| p.links.first().is_some_and(|l| l.is_at(&link));
        let place = node.place.read();
        let same = at_link(&place) && place.upper == link.upper && place.lowers == lowers;
        if same || place.gone || place.links.is_empty() {
            return Ok(());
        }
        // Either it was copied up since it was seen, or the upper had something there while another directory was.
        let maybe_lost = at_link(&place) && place.upper && !link.upper;
        drop(place);
        if maybe_lost && matches!(self.see_all(&link.parent, link.name.as_bytes())?, Seen::Upper(_)) {
            return Ok(());
        }
        let mut place = node.place.write();
        if place.gone || place.links.is_empty() {
            return Ok(());
        }
        let before = place.lowers.len();
        if maybe_lost || link.upper || !at_link(&place) {
            // Moved in the real tree: what the upper had at the old name, if anything, is not it any more.
            place.upper = link.upper;
            place.links = smallvec![link];
        }
        place.lowers = lowers;
        drop(place);
        self.fds.forget_all(node.id, before);
        node.touch_entries();
        self.unwatch(node);
        Ok(())
    }

    /// Others renamed something to `name` in the real directories of `dir`. If it is known, whoever has it open, or is in
    /// it, goes on there.
    pub(super) fn follow_renamed(&self, dir: &Arc<Node>, name: &[u8]) -> Sys<()> {
        let _tree = self.tree.read();
        let name = Name::new(name)?;
        let seen = self.see(dir, name.as_bytes())?;
        let Seen::Lower(_, attr) = seen else { return Ok(()) };
        let Some(known) = self.nodes.find(&Ident::of(dir.root, &attr)) else { return Ok(()) };
        let before = known.place.read().lowers.clone();
        let watched = known.dir.as_ref().is_some_and(|dir| dir.watched.load(Ordering::Acquire) != 0);
        let (node, _) = self.instantiate(dir, &name, seen)?;
        let after = node.place.read().lowers.clone();
        if let ([from], [to]) = (&*before, &*after)
            && from != to
            && Arc::ptr_eq(&node, &known)
        {
            self.move_beneath(&node, from, to);
        }
        if watched {
            self.ensure_watched(&node);
        }
        self.forget(node.id, 1);
        Ok(())
    }

    /// The known directories of the real tree beneath that of `moved` are at `to` by now.
    fn move_beneath(&self, moved: &Arc<Node>, from: &LowerDir, to: &LowerDir) {
        for node in self.nodes.all() {
            if node.kind != Kind::Dir || node.root != moved.root || Arc::ptr_eq(&node, moved) {
                continue;
            }
            let mut place = node.place.write();
            let [lower] = &*place.lowers else { continue };
            // What the session has in a directory stays at its path.
            if place.upper || lower.layer != from.layer {
                continue;
            }
            if let Some(rest) = lower.path.strip_prefix(&from.path) {
                let path = rest.components().fold(to.path.clone(), |path, name| path.join(name));
                place.lowers = [LowerDir { layer: to.layer, path }].into();
                drop(place);
                self.fds.forget_all(node.id, 1);
            }
        }
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
