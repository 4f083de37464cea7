//! The dropper for a session that no server has open: it edits the upper on disk.

use super::discard::{Dropper, Leave, Seen};
use super::objects::{self, Object};
use super::paths::{Resolver, ancestors, under};
use super::replaced::Replaced;
use super::{RootDirs, root_of, scan};
use crate::base::{Attr, Change, ChangeSet, Errno, Error, Kind, RelPath, Relinked, Result, Sys, What};
use crate::journal::Record;
use crate::layer::{self, WH_OPAQUE, WH_PREFIX, WhiteoutForm, X_BASE, X_REDIRECT};
use crate::sys::{file, xattr};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};

/// Edits the uppers of a session that no server has open.
pub struct Offline<'a> {
    roots: &'a [RootDirs],
    why: Leave,
    /// Upper files that were changed here under one of their names.
    relinked: RefCell<Relinked>,
    /// The changes that are still there.
    left: BTreeMap<(u16, RelPath), &'a Change>,
    replaced: Replaced,
    /// For each rename, by its new path: where its old path shows in the merged view.
    old_places: BTreeMap<(u16, RelPath), RelPath>,
    /// What the journal is to be told beside what left.
    untold: RefCell<Vec<Record>>,
}

impl<'a> Offline<'a> {
    /// A dropper for the session with `roots`, whose changes are `set`.
    pub fn new(roots: &'a [RootDirs], set: &'a ChangeSet, why: Leave) -> Self {
        let resolver = Resolver::new(&set.changes);
        let mut offline = Offline {
            roots,
            why,
            relinked: RefCell::default(),
            left: BTreeMap::new(),
            replaced: Replaced::new(set, why),
            old_places: BTreeMap::new(),
            untold: RefCell::default(),
        };
        for c in &set.changes {
            if let Some(from) = c.from.as_ref().filter(|_| c.what == What::Renamed) {
                offline.old_places.insert((c.root, c.path.clone()), resolver.merged(c.root, from));
            }
            offline.left.insert((c.root, c.path.clone()), c);
        }
        offline
    }

    /// Takes what the journal is to be told of the upper before it is told of the change that just left.
    pub fn untold(&mut self) -> Vec<Record> {
        std::mem::take(self.untold.get_mut())
    }
}

impl Dropper for Offline<'_> {
    fn drop(&mut self, root: u16, path: &RelPath, seen: Option<Seen>) -> Result<bool> {
        let dirs = root_of(self.roots, root)?;
        let failed = |e| Error::on_path("take out of the session", path.as_bytes(), e);
        if path.is_root() {
            return reset_root(dirs)
                .map(|()| true)
                .map_err(|e| Error::on_path("take out of the session", b".", e));
        }
        let object = Object::find(dirs.upper.as_fd(), path).map_err(failed)?;
        let changed = match (seen, &object) {
            (Some(seen), Some(o)) => {
                let ours = self.relinked.borrow().explains(&o.attr, seen.ctime);
                o.attr.ino != seen.ino || (o.attr.ctime != seen.ctime && !ours)
            }
            (Some(_), None) => true,
            (None, _) => false,
        };
        if changed {
            return Ok(false);
        }
        let change = self.left.remove(&(root, path.clone()));
        self.replaced.left(root, path);
        let times = self.times_above(dirs, path, change).map_err(failed)?;
        self.edit(dirs, path, change).map_err(failed)?;
        for (dir, was) in times {
            if let Some(dir) = Object::find(dirs.upper.as_fd(), &dir).map_err(failed)? {
                super::attrs::set_both_times(&dir, was.atime, was.mtime).map_err(failed)?;
            }
        }
        if let Some(o) = &object {
            forget_index(dirs, o).map_err(failed)?;
        }
        if let Some(o) = object.filter(|o| o.attr.kind != Kind::Dir && o.attr.nlink > 1) {
            self.note_relinked(&o).map_err(failed)?;
        }
        Ok(true)
    }
}

/// Of a file that was copied up from one with several names, the index leads the others to the copy. With the last name
/// of the upper gone they are to lead to the real file again.
fn forget_index(dirs: &RootDirs, object: &Object) -> Sys<()> {
    if object.attr.kind != Kind::File || object.attr.nlink < 2 {
        return Ok(());
    }
    let Some(origin) = layer::read_origin(object.fd.as_fd())?.filter(|o| o.base.nlink > 1) else {
        return Ok(());
    };
    let name = [b"index/", &layer::index_name(origin.base.ino, origin.btime)[..]].concat();
    let at = RelPath::new(&name)?;
    match objects::stat(dirs.work.as_fd(), &at)? {
        Some(a) if (a.dev, a.ino, a.nlink) == (object.attr.dev, object.attr.ino, 1) => {
            let (index, name) = objects::open_parent(dirs.work.as_fd(), &at)?;
            file::unlinkat(index.as_fd(), name)
        }
        _ => Ok(()),
    }
}

/// Gives the root's own entry in the upper the real directory's mode and xattrs: then nothing of it is changed.
fn reset_root(dirs: &RootDirs) -> Sys<()> {
    let (real, upper) = (dirs.real.as_fd(), dirs.upper.as_fd());
    for name in xattr::list(upper)?.into_iter().filter(|n| !layer::is_private(n)) {
        if xattr::get(real, &name)?.is_none() {
            xattr::remove(upper, &name)?;
        }
    }
    for name in xattr::list(real)?.into_iter().filter(|n| n.starts_with(b"user.") && !layer::is_private(n)) {
        if let Some(value) = xattr::get(real, &name)? {
            xattr::set(upper, &name, &value, 0)?;
        }
    }
    let now = file::stat(real)?;
    file::chmod_fd(upper, now.perm)?;
    // What it is a change of from now on.
    if let Some(origin) = layer::read_origin(upper)? {
        let base = crate::base::BaseId::of(&now);
        objects::in_writable(upper, || {
            layer::write_origin(upper, &layer::Origin { base: base.clone(), ..origin.clone() })
        })?;
    }
    Ok(())
}

impl Offline<'_> {
    /// The directories, changes themselves, from which something is taken that the real tree has now, and what they are: to
    /// the session nothing changed in them, so their times are to stay.
    fn times_above(
        &self,
        dirs: &RootDirs,
        path: &RelPath,
        change: Option<&Change>,
    ) -> Sys<Vec<(RelPath, Attr)>> {
        let from = change.filter(|c| c.what == What::Renamed).and_then(|c| c.from.as_ref());
        let old = from.map(|from| self.old_place(dirs, path, from));
        let mut above: Vec<_> = ancestors(path).chain(old.iter().flat_map(ancestors)).collect();
        above.retain(|dir| self.why == Leave::Applied && self.left.contains_key(&(dirs.root, dir.clone())));
        let mut times = Vec::new();
        for dir in above {
            if let Some(attr) = objects::stat(dirs.upper.as_fd(), &dir)?.filter(|a| a.kind == Kind::Dir) {
                times.push((dir, attr));
            }
        }
        Ok(times)
    }

    /// Notes that a file with other names, `was` before, was just changed here.
    fn note_relinked(&self, was: &Object) -> Sys<()> {
        let now = file::stat(was.fd.as_fd())?.ctime;
        self.relinked.borrow_mut().note(&was.attr, now);
        Ok(())
    }

    fn edit(&self, dirs: &RootDirs, path: &RelPath, change: Option<&Change>) -> Sys<()> {
        let upper = dirs.upper.as_fd();
        let parent = path.parent().unwrap_or_default();
        let lower = match self.why {
            Leave::Applied => self.reveal_applied(dirs, &parent)?,
            Leave::Discarded => self.reveal(dirs, &parent)?,
        };
        let slot = lower.and_then(|l| path.file_name().map(|name| l.join(name)));
        let mut strays = Vec::new();
        match Object::find(upper, path)? {
            Some(object) if object.attr.kind == Kind::Dir => {
                if self.why == Leave::Discarded && change.is_some_and(|c| c.what == What::Renamed) {
                    strays = take_whiteouts(dirs, path)?;
                }
                self.drop_dir(dirs, path, slot.as_ref(), &object, change)?;
            }
            Some(object) if !object.attr.is_whiteout() => {
                let (dir, name) = objects::open_parent(upper, path)?;
                objects::in_writable(dir.as_fd(), || file::unlinkat(dir.as_fd(), name))?;
            }
            _ => {}
        }
        // What was applied is not to be hidden, whatever the real tree had there before and the session has elsewhere.
        self.settle_name(dirs, path, slot.as_ref().filter(|_| self.why == Leave::Discarded))?;
        if let Some(from) = change.filter(|c| c.what == What::Renamed).and_then(|c| c.from.as_ref()) {
            let old = self.old_place(dirs, path, from);
            // A directory made anew where the old one was is to show it again.
            self.reveal(dirs, &old.parent().unwrap_or_default())?;
            self.settle_name(dirs, &old, Some(from))?;
            for stray in strays {
                self.hide_again(dirs, &under(from, &stray))?;
            }
            self.tidy(dirs, &old)?;
        }
        self.tidy(dirs, path)
    }

    /// As [`Replaced::reveal`], and merges what is on the way.
    fn reveal(&self, dirs: &RootDirs, path: &RelPath) -> Sys<Option<RelPath>> {
        self.replaced.reveal(dirs, path, |at, lower, object| self.expand(dirs, at, lower, object))
    }

    /// As [`Offline::reveal`], for what the real tree has now: directories that the session renamed were renamed there before,
    /// so everything on the way has its path in both.
    fn reveal_applied(&self, dirs: &RootDirs, path: &RelPath) -> Sys<Option<RelPath>> {
        let mut at = RelPath::root();
        for name in path.components() {
            at = at.join(name);
            let Some(object) = Object::find(dirs.upper.as_fd(), &at)? else { continue };
            let is_dir = |a: Attr| a.kind == Kind::Dir;
            if is_dir(object.attr)
                && scan::is_opaque(dirs, &object)?
                && objects::stat(dirs.real.as_fd(), &at)?.is_some_and(is_dir)
            {
                self.expand(dirs, &at, &at, &object)?;
            }
        }
        Ok(objects::stat(dirs.real.as_fd(), path)?.filter(|a| a.kind == Kind::Dir).map(|_| path.clone()))
    }

    /// Merges the upper directory `path` with the real one at `lower`, and notes what it hides of that. What came back
    /// to where the real tree has it needs not to say so any more.
    fn expand(&self, dirs: &RootDirs, path: &RelPath, lower: &RelPath, object: &Object) -> Sys<()> {
        let real = objects::open_dir(dirs.real.as_fd(), lower)?;
        let hidden = layer::expand(object.fd.as_fd(), real.as_fd(), dirs.features, &in_writable)?;
        self.untold.borrow_mut().extend(Record::of_merged(dirs.root, path, &hidden));
        for name in objects::names(dirs.upper.as_fd(), path)? {
            let (child, below) = (path.join(&name), lower.join(&name));
            let found = Object::find(dirs.upper.as_fd(), &child)?.filter(|o| o.attr.kind == Kind::Dir);
            if let Some(dir) = found
                && layer::read_redirect(dir.fd.as_fd(), lower)?.as_ref() == Some(&below)
                && objects::stat(dirs.real.as_fd(), &below)?.is_some_and(|a| a.kind == Kind::Dir)
            {
                forget(dir.fd.as_fd(), X_REDIRECT)?;
                self.remove_silent(dirs, &child)?;
            }
        }
        Ok(())
    }

    /// Where the old path of the rename at `path` shows in the merged view. While changes are discarded that moves with
    /// every rename that is undone; after an application the real tree has all renames already.
    fn old_place(&self, dirs: &RootDirs, path: &RelPath, from: &RelPath) -> RelPath {
        if self.why == Leave::Applied {
            return self.old_places.get(&(dirs.root, path.clone())).unwrap_or(from).clone();
        }
        for dir in ancestors(from) {
            if let Some(to) = self.replaced.taken(dirs.root, &dir)
                && let Some(rest) = from.strip_prefix(&dir)
            {
                return under(to, &rest);
            }
        }
        from.clone()
    }

    /// The real object at `real` was hidden in a directory that went back to its old place, and is still under
    /// another name: it is hidden there.
    fn hide_again(&self, dirs: &RootDirs, real: &RelPath) -> Sys<()> {
        if self.replaced.taken(dirs.root, real).is_none() {
            return Ok(());
        }
        let place = self.old_place(dirs, real, real);
        let Some(parent) = place.parent() else { return Ok(()) };
        let (mut at, mut lower) = (RelPath::root(), RelPath::root());
        for name in parent.components() {
            let dir = objects::open_dir(dirs.upper.as_fd(), &at)?;
            at = at.join(name);
            lower = lower.join(name);
            match Object::find(dirs.upper.as_fd(), &at)? {
                Some(o) if o.attr.kind == Kind::Dir => {
                    lower = layer::read_redirect(o.fd.as_fd(), &lower.parent().unwrap_or_default())?
                        .unwrap_or(lower);
                }
                // Hidden as it is, with the directory above it.
                Some(_) => return Ok(()),
                None => {
                    let Some(below) = Object::find(dirs.real.as_fd(), &lower)? else { return Ok(()) };
                    objects::in_writable(dir.as_fd(), || file::mkdirat(dir.as_fd(), name, 0o700))?;
                    let made = Object::find(dirs.upper.as_fd(), &at)?.ok_or(Errno::ENOENT)?;
                    super::attrs::give_all(&made, &below.attr, &objects::xattrs(&below)?)?;
                }
            }
        }
        self.settle_name(dirs, &place, Some(real))
    }

    /// Puts a whiteout at a free name if a rename that stays in the session took the real object from there, and
    /// takes one away if not.
    fn settle_name(&self, dirs: &RootDirs, path: &RelPath, slot: Option<&RelPath>) -> Sys<()> {
        let upper = dirs.upper.as_fd();
        let (dir, name) = match objects::open_parent(upper, path) {
            Ok(found) => found,
            Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(()),
            Err(e) => return Err(e),
        };
        let form = dirs.features.whiteout;
        let taken = slot.is_some_and(|slot| self.replaced.taken(dirs.root, slot).is_some());
        match layer::find(dir.as_fd(), name, layer::LayerKind::Overlay, form == WhiteoutForm::Prefix)? {
            layer::Found::Whiteout(_) if !taken => {
                objects::in_writable(dir.as_fd(), || remove_whiteout(dir.as_fd(), name, form))
            }
            layer::Found::Nothing if taken => match slot {
                Some(slot) if objects::stat(dirs.real.as_fd(), slot)?.is_some() => {
                    objects::in_writable(dir.as_fd(), || layer::make_whiteout(dir.as_fd(), name, form))
                }
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// The directory's own change leaves; what lies in it stays, on what the real tree has at its name.
    fn drop_dir(
        &self,
        dirs: &RootDirs,
        path: &RelPath,
        slot: Option<&RelPath>,
        object: &Object,
        change: Option<&Change>,
    ) -> Sys<()> {
        let upper = dirs.upper.as_fd();
        let real = match slot {
            Some(slot) => Object::find(dirs.real.as_fd(), slot)?.filter(|o| o.attr.kind == Kind::Dir),
            None => None,
        };
        if scan::is_opaque(dirs, object)? {
            match (&real, slot) {
                (Some(_), Some(slot)) if !self.replaced.was_elsewhere(dirs.root, slot) => {
                    self.expand(dirs, path, slot, object)?;
                }
                _ => layer::clear_opaque(object.fd.as_fd(), dirs.features, &in_writable)?,
            }
        }
        if let Some(Change { what: What::Renamed, from: Some(from), .. }) = change {
            forget(object.fd.as_fd(), X_REDIRECT)?;
            if let Some(slot) = slot {
                self.rebase(dirs, path, from, slot)?;
            }
            self.prune(dirs, path)?;
        }
        forget(object.fd.as_fd(), X_BASE)?;
        if let Some(real) = &real {
            let xattrs = objects::xattrs(real)?;
            super::attrs::give_all(object, &real.attr, &xattrs)?;
        }
        let (dir, name) = objects::open_parent(upper, path)?;
        match objects::in_writable(dir.as_fd(), || file::rmdirat(dir.as_fd(), name)) {
            Ok(()) | Err(Errno::ENOTEMPTY | Errno::EEXIST) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// The real directory `from` is at `to` now: origins and redirects of what is left beneath `path` of the upper follow.
    fn rebase(&self, dirs: &RootDirs, path: &RelPath, from: &RelPath, to: &RelPath) -> Sys<()> {
        if objects::stat(dirs.real.as_fd(), to)?.is_none() {
            return Ok(());
        }
        let mut found = Vec::new();
        objects::walk(dirs.upper.as_fd(), path, &mut |child, attr| {
            if matches!(attr.kind, Kind::File | Kind::Dir) {
                found.push(child.clone());
            }
            Ok(())
        })?;
        for child in found {
            let Some(object) = Object::find(dirs.upper.as_fd(), &child)? else { continue };
            let fd = object.fd.as_fd();
            if let Some(mut origin) = layer::read_origin(fd)?
                && let Some(rest) = origin.path.strip_prefix(from)
            {
                origin.path = under(to, &rest);
                objects::in_writable(fd, || layer::write_origin(fd, &origin))?;
                // Also of one whose other names have left already.
                if object.attr.kind == Kind::File {
                    self.note_relinked(&object)?;
                }
            }
            let redirect = xattr::get(fd, X_REDIRECT)?.filter(|v| v.starts_with(b"/"));
            if let Some(target) = redirect.and_then(|v| RelPath::new(&v[1..]).ok())
                && let Some(rest) = target.strip_prefix(from)
            {
                objects::in_writable(fd, || layer::write_redirect(fd, &under(to, &rest)))?;
            }
        }
        Ok(())
    }

    /// Removes directories above `path` that are empty and say nothing.
    fn tidy(&self, dirs: &RootDirs, path: &RelPath) -> Sys<()> {
        for dir in ancestors(path).filter(|d| !d.is_root()) {
            if !self.remove_silent(dirs, &dir)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Removes directories beneath `path` that are empty and say nothing. What they merged with could not be told as
    /// long as their directory pointed to where the real tree had it before.
    fn prune(&self, dirs: &RootDirs, path: &RelPath) -> Sys<()> {
        let mut found = Vec::new();
        objects::walk(dirs.upper.as_fd(), path, &mut |child, attr| {
            if attr.kind == Kind::Dir {
                found.push(child.clone());
            }
            Ok(())
        })?;
        for dir in found.iter().rev() {
            self.expand_unchanged(dirs, dir)?;
            self.remove_silent(dirs, dir)?;
        }
        Ok(())
    }

    /// Turns the opaque mark of a directory into whiteouts if it is the same directory as the real one again, so no change.
    fn expand_unchanged(&self, dirs: &RootDirs, dir: &RelPath) -> Sys<()> {
        let Some(object) = Object::find(dirs.upper.as_fd(), dir)? else { return Ok(()) };
        let change = self.left.get(&(dirs.root, dir.clone()));
        if change.is_some_and(|c| c.what != What::Modified) || !scan::is_opaque(dirs, &object)? {
            return Ok(());
        }
        let Some(lower) = lower_of(dirs, dir, |_, _, _| Ok(true))? else { return Ok(()) };
        if self.replaced.taken(dirs.root, &lower).is_some() || self.replaced.was_elsewhere(dirs.root, &lower)
        {
            return Ok(());
        }
        self.expand(dirs, dir, &lower, &object)
    }

    /// As [`lower_of`]; `None` where an opaque directory on the way hides it: what is seen there is seen only because the upper
    /// has it.
    fn lower_shown(dirs: &RootDirs, dir: &RelPath) -> Sys<Option<RelPath>> {
        let mut hidden = false;
        let lower = lower_of(dirs, dir, |_, _, at| {
            let redirected = xattr::get(at.fd.as_fd(), X_REDIRECT)?.is_some();
            hidden = scan::is_opaque(dirs, at)? || (hidden && !redirected);
            Ok(true)
        })?;
        Ok(lower.filter(|_| !hidden))
    }

    /// Removes the upper directory `dir` if it is empty and only stands for the real one, which shows without it; whether it is
    /// gone.
    fn remove_silent(&self, dirs: &RootDirs, dir: &RelPath) -> Sys<bool> {
        let Some(object) = Object::find(dirs.upper.as_fd(), dir)? else { return Ok(true) };
        let says_nothing = object.attr.kind == Kind::Dir
            && self.left.get(&(dirs.root, dir.clone())).is_none_or(|c| c.what != What::Meta)
            && !scan::is_opaque(dirs, &object)?;
        if !says_nothing {
            return Ok(false);
        }
        let (Some(above), Some(name)) = (dir.parent(), dir.file_name()) else { return Ok(false) };
        let Some(above) = Self::lower_shown(dirs, &above)? else { return Ok(false) };
        let lower = above.join(name);
        if layer::read_redirect(object.fd.as_fd(), &above)?.is_some_and(|to| to != lower) {
            return Ok(false);
        }
        let Some(below) = Object::find(dirs.real.as_fd(), &lower)? else { return Ok(false) };
        if !super::settle::MetaDiff::of(&below, &object, dirs, false)?.is_empty() {
            return Ok(false);
        }
        let (parent, name) = objects::open_parent(dirs.upper.as_fd(), dir)?;
        match objects::in_writable(parent.as_fd(), || file::rmdirat(parent.as_fd(), name)) {
            Ok(()) => Ok(true),
            Err(Errno::ENOTEMPTY | Errno::EEXIST) => Ok(false),
            Err(e) => Err(e),
        }
    }
}

/// Removes a whiteout in whichever form it is there.
fn remove_whiteout(dir: BorrowedFd<'_>, name: &[u8], form: WhiteoutForm) -> Sys<()> {
    layer::remove_whiteout(dir, name, WhiteoutForm::Device)?;
    match form {
        WhiteoutForm::Prefix => layer::remove_whiteout(dir, name, form),
        WhiteoutForm::Device => Ok(()),
    }
}

/// Takes all whiteouts beneath the upper directory `top` away; their paths from there.
fn take_whiteouts(dirs: &RootDirs, top: &RelPath) -> Sys<Vec<RelPath>> {
    let prefixed = dirs.features.whiteout == WhiteoutForm::Prefix;
    let mut found = Vec::new();
    objects::walk(dirs.upper.as_fd(), top, &mut |path, attr| {
        let name = path.file_name().unwrap_or_default();
        let hidden = name.strip_prefix(WH_PREFIX).filter(|_| prefixed && name != WH_OPAQUE);
        if attr.is_whiteout() {
            found.push((path.clone(), path.clone()));
        } else if let (Some(hidden), Some(dir)) = (hidden, path.parent()) {
            found.push((path.clone(), dir.join(hidden)));
        }
        Ok(())
    })?;
    let mut taken = Vec::new();
    for (path, hidden) in found {
        let (dir, name) = objects::open_parent(dirs.upper.as_fd(), &path)?;
        objects::in_writable(dir.as_fd(), || file::unlinkat(dir.as_fd(), name))?;
        taken.extend(hidden.strip_prefix(top));
    }
    Ok(taken)
}

fn in_writable(dir: BorrowedFd<'_>, change: &dyn Fn() -> Sys<()>) -> Sys<()> {
    objects::in_writable(dir, change)
}

fn forget(fd: BorrowedFd<'_>, name: &[u8]) -> Sys<()> {
    match objects::in_writable(fd, || xattr::remove(fd, name)) {
        Ok(()) | Err(Errno::ENODATA | Errno::EOPNOTSUPP) => Ok(()),
        Err(e) => Err(e),
    }
}

/// Where the content below the upper directory `path` lies in the real tree, by the redirects on the way and not
/// minding opaque marks; `None` where the real tree has no directory for it. `each` sees every directory of the upper
/// on the way that has one, with its real path; by saying false it makes what is below count as not there.
pub(super) fn lower_of(
    dirs: &RootDirs,
    path: &RelPath,
    mut each: impl FnMut(&RelPath, &RelPath, &Object) -> Sys<bool>,
) -> Sys<Option<RelPath>> {
    let (mut at, mut lower) = (RelPath::root(), Some(RelPath::root()));
    for name in path.components() {
        at = at.join(name);
        let object = Object::find(dirs.upper.as_fd(), &at)?.filter(|o| o.attr.kind == Kind::Dir);
        let redirect = match &object {
            Some(o) => layer::read_redirect(o.fd.as_fd(), &lower.clone().unwrap_or_default())?,
            None => None,
        };
        lower = redirect.or_else(|| lower.map(|l| l.join(name)));
        let Some(real) = &lower else { continue };
        let is_dir = objects::stat(dirs.real.as_fd(), real)?.is_some_and(|a| a.kind == Kind::Dir);
        let goes_on = match &object {
            Some(object) if is_dir => each(&at, real, object)?,
            _ => is_dir,
        };
        if !goes_on {
            lower = None;
        }
    }
    Ok(lower)
}
