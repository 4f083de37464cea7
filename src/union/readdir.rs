//! Listing merged directories.
//!
//! The offset of an entry is a hash of its name, and entries come in the order of their offsets. So an offset means
//! the same after any change of the directory, in any listing, with no state to keep: an entry that is there all the
//! time is listed exactly once, whatever happens to others meanwhile (readdir(3), POSIX).

use super::copy_up::open_forced;
use super::lookup::Seen;
use super::node::{Node, NodeId};
use super::{TOP, Union, top_attr};
use crate::base::{Access, Attr, Errno, Kind, Name, Sys};
use crate::layer::{self, LayerKind};
use crate::sys::{dir as sysdir, file};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// An entry as it is handed out.
pub struct DirItem<'a> {
    /// The name.
    pub name: &'a [u8],
    /// Where to go on after it.
    pub offset: u64,
    /// The node; it counts as looked up if the consumer takes it with attributes (never for `.` and `..`).
    pub id: NodeId,
    /// Attributes.
    pub attr: Attr,
    /// How long the kernel may keep them.
    pub ttl: Duration,
}

/// The names of a merged directory at one moment, ordered by offset.
pub(crate) struct Listing {
    version: u64,
    entries: Vec<Listed>,
}

struct Listed {
    offset: u64,
    name: Name,
}

/// What the layers looked at so far make of a directory.
struct Merged {
    /// Whether names count that the view does not have.
    all: bool,
    names: Vec<Name>,
    /// What layers above have decided: an object or a whiteout.
    seen: HashMap<Name, ()>,
}

/// Offsets of `.` and `..`; all others are greater.
const DOT: u64 = 1;
const DOTDOT: u64 = 2;

impl Union {
    /// Hands the entries of directory `id` after `offset` to `take`, until it returns false for "full; not taken".
    /// With `plus`, each entry but `.` and `..` counts as looked up once when taken.
    ///
    /// # Errors
    /// As `open(2)` and `getdents(2)`.
    pub fn readdir(
        &self,
        id: NodeId,
        offset: u64,
        plus: bool,
        mut take: impl FnMut(DirItem<'_>) -> bool,
    ) -> Sys<()> {
        let _tree = self.tree.read();
        let dir = self.nodes.get(id)?;
        let attr = self.attr_of(&dir)?;
        for (name, at, dot_id) in
            [(b".".as_slice(), DOT, shown_id(&dir)), (b"..", DOTDOT, self.parent_id(&dir))]
        {
            if offset < at {
                let item = DirItem {
                    name,
                    offset: at,
                    id: dot_id,
                    attr: Attr { ino: dot_id, ..attr },
                    ttl: Duration::ZERO,
                };
                if !take(item) {
                    return Ok(());
                }
            }
        }
        if dir.root == TOP {
            return self.readdir_top(&dir, offset, plus, take);
        }
        let listing = self.listing(&dir, offset)?;
        let start = listing.entries.partition_point(|e| e.offset <= offset);
        for entry in &listing.entries[start..] {
            let (node, attr) = match self
                .see(&dir, entry.name.as_bytes())
                .and_then(|seen| self.instantiate(&dir, &entry.name, seen))
            {
                Ok(found) => found,
                Err(Errno::ENOENT | Errno::ESTALE) => continue, // gone since it was listed
                Err(Errno::EACCES) if self.ruled(&dir, entry.name.as_bytes()) == Some(Access::Deny) => {
                    if take(self.denied(&dir, entry)) {
                        continue;
                    }
                    break;
                }
                Err(e) => return Err(e),
            };
            let ttl = self.ttl(&dir, node.place.read().upper);
            let ttl = if self.changes_unseen(&node) { super::lookup::SHORT } else { ttl };
            if ttl == super::lookup::SHORT {
                self.check_unwatched(&node, &attr);
            }
            let item = DirItem { name: entry.name.as_bytes(), offset: entry.offset, id: node.id, attr, ttl };
            let taken = take(item);
            if !taken || !plus {
                self.forget(node.id, 1);
            }
            if !taken {
                break;
            }
        }
        Ok(())
    }

    /// The entry of a name that cannot be looked up: its kind, and a number that no node ever has. The kernel asks before
    /// it uses it (no time to live), and is refused.
    fn denied<'a>(&self, dir: &Arc<Node>, entry: &'a Listed) -> DirItem<'a> {
        let mut attr = top_attr(0);
        if let Ok(Seen::Upper(found) | Seen::Lower(_, found)) = self.see_all(dir, entry.name.as_bytes()) {
            attr.kind = found.kind;
        }
        attr.perm = 0;
        attr.ino = self.nodes.unused_id();
        let id = attr.ino;
        DirItem { name: entry.name.as_bytes(), offset: entry.offset, id, attr, ttl: Duration::ZERO }
    }

    fn parent_id(&self, dir: &Node) -> NodeId {
        let parent = dir.place.read().name().map(|l| l.parent.clone());
        parent.as_deref().map_or_else(|| shown_id(dir), shown_id)
    }

    fn readdir_top(
        &self,
        top: &Node,
        offset: u64,
        plus: bool,
        mut take: impl FnMut(DirItem<'_>) -> bool,
    ) -> Sys<()> {
        for (i, (name, node)) in top.dir()?.fixed.iter().enumerate() {
            let at = DOTDOT + 1 + i as u64;
            if at <= offset {
                continue;
            }
            let attr = self.attr_of(node).unwrap_or_else(|_| top_attr(0));
            if !take(DirItem {
                name: name.as_bytes(),
                offset: at,
                id: node.id,
                attr,
                ttl: super::lookup::LONG,
            }) {
                break;
            }
            if plus {
                self.nodes.acquire(node);
            }
        }
        Ok(())
    }

    /// The listing to serve from: a fresh one at the start, the one a reader began with while it goes on.
    fn listing(&self, dir: &Arc<Node>, offset: u64) -> Sys<Arc<Listing>> {
        let version = dir.dir()?.version.load(Ordering::Acquire);
        let watched = self.ensure_watched(dir) || dir.place.read().lowers.is_empty();
        if let Some(kept) = self.listings.lock().get(&dir.id)
            && (offset > DOTDOT || (watched && kept.version == version))
        {
            return Ok(kept.clone());
        }
        let mut entries: Vec<Listed> = self
            .merged_names(dir, false)?
            .into_iter()
            .filter(|name| self.ruled(dir, name.as_bytes()) != Some(Access::Hide))
            .map(|name| Listed { offset: offset_of(name.as_bytes()), name })
            .collect();
        entries.sort_unstable_by(|a, b| a.offset.cmp(&b.offset).then_with(|| a.name.cmp(&b.name)));
        for i in 1..entries.len() {
            if entries[i].offset <= entries[i - 1].offset {
                entries[i].offset = entries[i - 1].offset + 1;
            }
        }
        let listing = Arc::new(Listing { version, entries });
        self.listings.lock().put(dir.id, listing.clone());
        Ok(listing)
    }

    /// All names of a merged directory, in no order; with `all`, those that the view does not have as well. Needs the
    /// tree lock.
    pub(crate) fn merged_names(&self, dir: &Arc<Node>, all: bool) -> Sys<Vec<Name>> {
        let root = self.root(dir)?;
        let (upper, gone, lowers) = {
            let place = dir.place.read();
            (place.upper, place.gone, place.lowers.clone())
        };
        if gone {
            return Ok(Vec::new());
        }
        let mut merged = Merged { all, names: Vec::new(), seen: HashMap::new() };
        let layers = usize::from(upper) + lowers.len();
        if upper {
            let fd = open_listing(self.upper_dir(dir)?.as_fd(), true)?;
            self.add_layer(&fd, LayerKind::Overlay, root.prefixed, layers > 1, &mut merged)?;
        }
        for (k, lower) in lowers.iter().enumerate() {
            let fd = match self.lower_dir(dir, k) {
                Ok(fd) => open_listing(fd.as_fd(), false)?,
                Err(Errno::ENOENT | Errno::ENOTDIR) => continue,
                Err(e) => return Err(e),
            };
            let kind = root.lowers[usize::from(lower.layer)].kind;
            let last = k + 1 == lowers.len();
            let overlay = kind == LayerKind::Overlay;
            let track = layers > 1 && !(last && !upper && k == 0);
            self.add_layer(&fd, kind, overlay, track, &mut merged)?;
        }
        Ok(merged.names)
    }

    /// Adds what one layer contributes; `track` when another layer shares in the directory.
    fn add_layer(
        &self,
        readable: &OwnedFd,
        kind: LayerKind,
        prefixed: bool,
        track: bool,
        merged: &mut Merged,
    ) -> Sys<()> {
        let mut here = Vec::new();
        sysdir::list(readable.as_fd(), |bytes, ino, entry_kind| {
            let mut whiteout = false;
            let mut bytes = bytes;
            if kind == LayerKind::Overlay {
                if entry_kind.is_none_or(|k| k == Kind::Char) {
                    whiteout = stat_listed(readable, bytes)?.is_some_and(|a| a.is_whiteout());
                }
                if prefixed && bytes == layer::WH_OPAQUE {
                    return Ok(());
                }
                if let Some(hidden) = prefixed.then(|| bytes.strip_prefix(layer::WH_PREFIX)).flatten() {
                    (whiteout, bytes) = (true, hidden);
                }
            } else if !merged.all
                && self.hidden.iter().any(|(_, hidden)| *hidden == ino)
                && stat_listed(readable, bytes)?.is_some_and(|a| self.hidden.contains(&(a.dev, a.ino)))
            {
                return Ok(());
            }
            here.push((Name::new(bytes)?, whiteout));
            Ok(())
        })?;
        // Objects before whiteouts: with the prefixed form both may stand, and then the object counts.
        here.sort_by_key(|(_, whiteout)| *whiteout);
        for (name, whiteout) in here {
            if !track {
                if !whiteout {
                    merged.names.push(name);
                }
                continue;
            }
            if merged.seen.insert(name.clone(), ()).is_none() && !whiteout {
                merged.names.push(name);
            }
        }
        Ok(())
    }
}

/// What a name that was just listed leads to; `None` when it is gone meanwhile.
fn stat_listed(dir: &OwnedFd, name: &[u8]) -> Sys<Option<Attr>> {
    match file::stat_at(dir.as_fd(), name) {
        Ok(attr) => Ok(Some(attr)),
        Err(Errno::ENOENT) => Ok(None),
        Err(e) => Err(e),
    }
}

/// The inode number of a directory as `stat(2)` shows it.
fn shown_id(dir: &Node) -> NodeId {
    if dir.id == super::ROOT_ID && dir.root != TOP { dir.ident.ino } else { dir.id }
}

/// Opens a directory of a layer for listing. In a directory of our own, a mode that keeps its owner out does not count
/// (somebody may have it open from before); the real tree's modes are left alone.
fn open_listing(dir: BorrowedFd<'_>, ours: bool) -> Sys<OwnedFd> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY;
    match file::openat(dir, b".", flags, 0) {
        Err(Errno::EACCES) if ours => open_forced(dir, b"", flags),
        Err(Errno::EACCES) => file::reopen(dir, flags), // readable, but not to be searched
        other => other,
    }
}

/// FNV-1a with a finishing mix, in the 62 bits that remain above the dot entries.
fn offset_of(name: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for b in name {
        hash = (hash ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3);
    }
    hash ^= hash >> 32;
    (hash & (u64::MAX >> 2)).max(DOTDOT + 1)
}
