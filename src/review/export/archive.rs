//! Changes as a tar archive: plain, or as a layer of an OCI image.
//!
//! A layer says what is gone: `.wh.NAME` hides NAME of the layers below, `.wh..wh..opq` in a directory hides all that
//! they have in it (OCI image specification, layer.md). A plain archive cannot; deletions are reported instead.

use super::super::objects::{self, Object};
use super::super::paths::{Resolver, ancestors};
use super::super::settle::Settled;
use super::super::{RootDirs, root_of};
use super::write_failed;
use crate::base::{Attr, Errno, Error, Kind, RelPath, Result, What, quote};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use tar::{Builder, EntryType, Header};

/// Which archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The files that are new or differ.
    Tar,
    /// The same, and marks for what is gone.
    OciLayer,
}

const OPAQUE: &[u8] = b".wh..wh..opq";
const WHITEOUT: &[u8] = b".wh.";

/// Writes `set` as an archive of paths from the root, `prefix` of the root before each. Returns in sentences what the
/// archive does not carry.
///
/// # Errors
/// When an object cannot be read, a name cannot stand in a layer, or `out` cannot be written.
pub fn archive(
    roots: &[RootDirs],
    set: &[Settled],
    form: Form,
    prefix: &dyn Fn(u16) -> Vec<u8>,
    out: &mut dyn Write,
) -> Result<Vec<String>> {
    let resolver = Resolver::new(set.iter().map(|s| &s.change));
    let mut gone: BTreeSet<(u16, RelPath)> = BTreeSet::new();
    for s in set {
        let c = &s.change;
        if matches!(c.what, What::Deleted | What::Typed) {
            gone.extend(s.real_path.clone().map(|p| (c.root, p)));
        }
        gone.extend(c.from.clone().map(|p| (c.root, p)));
    }
    let mut writer =
        Writer { builder: Builder::new(out), form, resolver, gone, links: BTreeMap::new(), lost: Vec::new() };
    let mut by_path: Vec<&Settled> = set.iter().collect();
    by_path.sort_by(|a, b| (a.change.root, &a.change.path).cmp(&(b.change.root, &b.change.path)));
    for s in by_path {
        let dirs = root_of(roots, s.change.root)?;
        writer.change(dirs, s, &prefix(s.change.root))?;
    }
    writer.whiteouts(prefix)?;
    writer.builder.finish().map_err(write_failed)?;
    Ok(writer.lost)
}

struct Writer<'a, 'o> {
    builder: Builder<&'o mut dyn Write>,
    form: Form,
    resolver: Resolver<'a>,
    /// Real paths whose object is no longer there.
    gone: BTreeSet<(u16, RelPath)>,
    /// The first name of each file with several.
    links: BTreeMap<(u64, u64), Vec<u8>>,
    lost: Vec<String>,
}

fn name_of(prefix: &[u8], path: &RelPath) -> Vec<u8> {
    match (prefix.is_empty(), path.is_root()) {
        (true, true) => b".".to_vec(),
        (true, false) => path.as_bytes().to_vec(),
        (false, true) => prefix.to_vec(),
        (false, false) => [prefix, b"/", path.as_bytes()].concat(),
    }
}

impl Writer<'_, '_> {
    fn change(&mut self, dirs: &RootDirs, s: &Settled, prefix: &[u8]) -> Result<()> {
        let c = &s.change;
        if c.what == What::Deleted {
            return Ok(());
        }
        let read = |e| Error::on_path("read", c.path.as_bytes(), e);
        let upper = Object::find(dirs.upper.as_fd(), &c.path).map_err(read)?;
        let Some(object) = upper.filter(|o| !o.attr.is_whiteout()) else { return Ok(()) };
        self.object(&object, &name_of(prefix, &c.path), s.link_group)?;
        if c.kind != Kind::Dir || !matches!(c.what, What::Added | What::Typed | What::Renamed) {
            return Ok(());
        }
        let hides = objects::stat(dirs.real.as_fd(), &c.path).map_err(read)?;
        if self.form == Form::OciLayer && hides.is_some_and(|a| a.kind == Kind::Dir) {
            self.mark(&name_of(prefix, &c.path.join(OPAQUE)))?;
        }
        match &c.from {
            Some(from) => self.moved(dirs, from, &c.path, prefix),
            None => Ok(()),
        }
    }

    /// What lies in a directory that was moved and has no change of its own: to a layer below it is new at this name.
    fn moved(&mut self, dirs: &RootDirs, from: &RelPath, to: &RelPath, prefix: &[u8]) -> Result<()> {
        let mut todo = vec![(from.clone(), to.clone())];
        while let Some((real, merged)) = todo.pop() {
            let read = |e| Error::on_path("read", real.as_bytes(), e);
            for name in objects::names(dirs.real.as_fd(), &real).map_err(read)? {
                let (below, here) = (real.join(&name), merged.join(&name));
                if self.gone.contains(&(dirs.root, below.clone())) {
                    continue;
                }
                let changed = self.resolver.at(dirs.root, &here);
                if changed.is_some_and(|c| matches!(c.what, What::Deleted | What::Typed | What::Renamed)) {
                    continue;
                }
                let Some(object) = Object::find(dirs.real.as_fd(), &below).map_err(read)? else { continue };
                let is_dir = object.attr.kind == Kind::Dir;
                if changed.is_none() {
                    self.object(&object, &name_of(prefix, &here), None)?;
                }
                if is_dir {
                    todo.push((below, here));
                }
            }
        }
        Ok(())
    }

    fn object(&mut self, object: &Object, name: &[u8], group: Option<(u64, u64)>) -> Result<()> {
        let failed = |e: Errno| Error::on_path("read", name, e);
        let last = name.rsplit(|&b| b == b'/').next().unwrap_or_default();
        if self.form == Form::OciLayer && last.starts_with(WHITEOUT) {
            return Err(Error::failure(format!(
                "{} cannot be in a layer: its name is a mark there",
                quote(name)
            ))
            .hint("leave it out, or export another form"));
        }
        if object.attr.kind == Kind::Socket {
            self.lost.push(format!("{}: a socket cannot be in an archive", quote(name)));
            return Ok(());
        }
        let mut header = header(&object.attr);
        if let Some(first) = group.and_then(|g| self.links.get(&g)) {
            header.set_entry_type(EntryType::Link);
            header.set_size(0);
            let target = path_of(first).to_path_buf();
            return self.append_link(&mut header, name, &target);
        }
        if let Some(group) = group {
            self.links.insert(group, name.to_vec());
        }
        self.extended(object)?;
        match object.attr.kind {
            Kind::Symlink => {
                let target = object.target().map_err(failed)?;
                let target = path_of(&target).to_path_buf();
                self.append_link(&mut header, name, &target)
            }
            Kind::File => {
                header.set_size(object.attr.size);
                let file = std::fs::File::from(object.readable().map_err(failed)?);
                // A file that grows or shrinks while it is read must not shift what follows it.
                let exact = file.take(object.attr.size).chain(std::io::repeat(0)).take(object.attr.size);
                self.builder.append_data(&mut header, path_of(name), exact).map_err(write_failed)
            }
            Kind::Dir => {
                let name = [name, b"/"].concat();
                self.builder.append_data(&mut header, path_of(&name), std::io::empty()).map_err(write_failed)
            }
            _ => self.builder.append_data(&mut header, path_of(name), std::io::empty()).map_err(write_failed),
        }
    }

    fn append_link(&mut self, header: &mut Header, name: &[u8], target: &std::path::Path) -> Result<()> {
        self.builder.append_link(header, path_of(name), target).map_err(write_failed)
    }

    /// The records before the header: what does not fit in it.
    fn extended(&mut self, object: &Object) -> Result<()> {
        let all = objects::xattrs(object).map_err(|e| Error::sys("read the xattrs", e))?;
        let mut keys: Vec<(String, Vec<u8>)> = Vec::new();
        if object.attr.mtime.nsec != 0 || object.attr.mtime.sec < 0 {
            keys.push(("mtime".into(), object.attr.mtime.decimal().into_bytes()));
        }
        for (key, value) in all {
            // GNU tar and bsdtar take ACLs from these, container tools from the xattrs.
            let acl = match key.as_slice() {
                objects::ACL_ACCESS => Some("SCHILY.acl.access"),
                objects::ACL_DEFAULT => Some("SCHILY.acl.default"),
                _ => None,
            };
            keys.extend(acl.zip(acl_text(&value)).map(|(key, text)| (key.into(), text.into_bytes())));
            keys.extend(String::from_utf8(key).ok().map(|key| (format!("SCHILY.xattr.{key}"), value)));
        }
        if keys.is_empty() {
            return Ok(());
        }
        let pairs = keys.iter().map(|(key, value)| (key.as_str(), value.as_slice()));
        self.builder.append_pax_extensions(pairs).map_err(write_failed)
    }

    fn mark(&mut self, name: &[u8]) -> Result<()> {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(0o644);
        header.set_size(0);
        self.builder.append_data(&mut header, path_of(name), std::io::empty()).map_err(write_failed)
    }

    /// Marks for what is gone and has nothing in its place, unless a directory above says so already.
    fn whiteouts(&mut self, prefix: &dyn Fn(u16) -> Vec<u8>) -> Result<()> {
        let gone = std::mem::take(&mut self.gone);
        for (root, real) in &gone {
            let hidden = |dir: &RelPath| {
                let at = self.resolver.at(*root, dir);
                at.is_some_and(|c| matches!(c.what, What::Added | What::Typed | What::Renamed))
            };
            let above = ancestors(real).any(|dir| hidden(&dir) || gone.contains(&(*root, dir)));
            let replaced = self.resolver.at(*root, real).is_some_and(|c| c.what != What::Deleted);
            let (Some(parent), Some(name)) = (real.parent(), real.file_name()) else { continue };
            if above || replaced {
                continue;
            }
            let mark = name_of(&prefix(*root), &parent.join(&[WHITEOUT, name].concat()));
            match self.form {
                Form::OciLayer => self.mark(&mark)?,
                Form::Tar => self.lost.push(format!("{real}: an archive cannot say that it is gone")),
            }
        }
        Ok(())
    }
}

fn header(attr: &Attr) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(match attr.kind {
        Kind::File | Kind::Socket => EntryType::Regular,
        Kind::Dir => EntryType::Directory,
        Kind::Symlink => EntryType::Symlink,
        Kind::Fifo => EntryType::Fifo,
        Kind::Char => EntryType::Char,
        Kind::Block => EntryType::Block,
    });
    header.set_mode(attr.perm);
    header.set_uid(u64::from(attr.uid));
    header.set_gid(u64::from(attr.gid));
    header.set_mtime(u64::try_from(attr.mtime.sec).unwrap_or(0));
    header.set_size(0);
    header
}

/// An ACL as acl(5) writes it, with numbers for names, from the form that it has as an xattr (linux/posix_acl_xattr.h):
/// a version, then a tag, permissions and an id for each entry. `None` when it is none.
fn acl_text(value: &[u8]) -> Option<String> {
    let entries = value.strip_prefix(&2u32.to_le_bytes())?;
    let entry = |e: &[u8]| {
        let half = |at: usize| u16::from_le_bytes([e[at], e[at + 1]]);
        let id = u32::from_le_bytes([e[4], e[5], e[6], e[7]]);
        let (tag, id) = match half(0) {
            0x01 => ("user", String::new()),
            0x02 => ("user", id.to_string()),
            0x04 => ("group", String::new()),
            0x08 => ("group", id.to_string()),
            0x10 => ("mask", String::new()),
            0x20 => ("other", String::new()),
            _ => return None,
        };
        let may = |bit: u16, letter: char| if half(2) & bit != 0 { letter } else { '-' };
        Some(format!("{tag}:{id}:{}{}{}", may(4, 'r'), may(2, 'w'), may(1, 'x')))
    };
    if entries.is_empty() || entries.len() % 8 != 0 {
        return None;
    }
    entries.chunks_exact(8).map(entry).collect::<Option<Vec<_>>>().map(|all| all.join(","))
}

fn path_of(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}
