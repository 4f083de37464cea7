//! A real tree and an upper made by hand, and the steps from one to the other.

use sbx_fuse::base::{ChangeSet, RelPath};
use sbx_fuse::layer::{self, Features, Origin, WhiteoutForm};
use sbx_fuse::review::{
    self, Leave, Offline, Options, Plan, Report, RootDirs, Selection, Settled, apply, render, scan, settle,
};
use sbx_fuse::sys::{file, xattr};
use std::ffi::OsStr;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

pub struct World {
    pub dir: tempfile::TempDir,
    pub features: Features,
}

pub fn rel(path: &str) -> RelPath {
    RelPath::new(path.as_bytes()).unwrap()
}

impl World {
    pub fn new() -> World {
        World::within(&std::env::temp_dir())
    }

    /// In a directory of this place.
    pub fn within(place: &Path) -> World {
        let dir = tempfile::tempdir_in(place).unwrap();
        for name in ["real", "upper", "work"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let work = fs::File::open(dir.path().join("work")).unwrap();
        let features = layer::probe(work.as_fd()).unwrap();
        World { dir, features }
    }

    pub fn prefixed() -> World {
        let mut world = World::new();
        world.features.whiteout = WhiteoutForm::Prefix;
        world
    }

    /// Waits until what is changed from now on has a later time than all that was changed before: the file system's
    /// clock has ticked.
    pub fn tick(&self) {
        let probe = self.dir.path().join("probe");
        let now = || {
            fs::write(&probe, "").unwrap();
            let meta = fs::symlink_metadata(&probe).unwrap();
            (meta.ctime(), meta.ctime_nsec())
        };
        let before = now();
        while now() <= before {
            std::thread::yield_now();
        }
    }

    pub fn real(&self, path: &str) -> PathBuf {
        self.dir.path().join("real").join(path)
    }

    pub fn upper(&self, path: &str) -> PathBuf {
        self.dir.path().join("upper").join(path)
    }

    pub fn roots(&self) -> Vec<RootDirs> {
        let at = |name| self.dir.path().join(name);
        vec![RootDirs::open(&at("real"), &at("upper"), &at("work"), self.features).unwrap()]
    }

    /// Makes a real file with its parents; a path that ends in a slash is a directory.
    pub fn has(&self, path: &str, content: &str) -> &Self {
        make(&self.real(path), path, content);
        age(&self.real(path));
        self
    }

    /// Makes an upper object with its parents, without an origin.
    pub fn put(&self, path: &str, content: &str) -> &Self {
        self.parents(path);
        make(&self.upper(path), path, content);
        self
    }

    /// Parents of an upper object have the attributes of the real ones where those exist.
    fn parents(&self, path: &str) {
        let mut at = String::new();
        for part in Path::new(path).parent().into_iter().flat_map(Path::iter) {
            at = if at.is_empty() {
                part.to_str().unwrap().into()
            } else {
                format!("{at}/{}", part.to_str().unwrap())
            };
            if fs::symlink_metadata(self.upper(&at)).is_err() {
                fs::create_dir(self.upper(&at)).unwrap();
            }
        }
    }

    /// Copies the real file `from` up to `path`, with an origin, as the union does.
    pub fn copy_up(&self, path: &str, from: &str, content: Option<&str>) -> &Self {
        self.parents(path);
        let to = self.upper(path);
        fs::write(&to, content.map_or_else(|| fs::read(self.real(from)).unwrap(), |c| c.into())).unwrap();
        let meta = fs::symlink_metadata(self.real(from)).unwrap();
        fs::set_permissions(&to, meta.permissions()).unwrap();
        if content.is_none() {
            let file = fs::File::open(&to).unwrap();
            file.set_modified(meta.modified().unwrap()).unwrap();
        }
        self.origin(path, from);
        self
    }

    pub fn origin(&self, path: &str, from: &str) {
        let real = fs::File::open(self.dir.path().join("real")).unwrap();
        let attr = file::stat_at(real.as_fd(), from.as_bytes()).unwrap();
        let base = sbx_fuse::base::BaseId::of(&attr);
        let origin = Origin { path: rel(from), base, btime: attr.btime };
        let fd = fs::File::open(self.upper(path)).unwrap();
        assert!(layer::write_origin(fd.as_fd(), &origin).unwrap());
    }

    pub fn whiteout(&self, path: &str) -> &Self {
        self.parents(path);
        let full = self.upper(path);
        let dir = fs::File::open(full.parent().unwrap()).unwrap();
        layer::make_whiteout(dir.as_fd(), full.file_name().unwrap().as_bytes(), self.features.whiteout)
            .unwrap();
        self
    }

    pub fn opaque(&self, path: &str) -> &Self {
        let dir = fs::File::open(self.upper(path)).unwrap();
        if self.features.whiteout == WhiteoutForm::Prefix {
            fs::write(self.upper(path).join(".wh..wh..opq"), "").unwrap();
        } else {
            layer::set_opaque(dir.as_fd()).unwrap();
        }
        self
    }

    /// Makes an upper directory whose content lies at `from`.
    pub fn redirect(&self, path: &str, from: &str) -> &Self {
        self.put(&format!("{path}/"), "");
        let dir = fs::File::open(self.upper(path)).unwrap();
        layer::write_redirect(dir.as_fd(), &rel(from)).unwrap();
        self
    }

    pub fn set_xattr(&self, full: &Path, name: &str, value: &str) {
        let file = fs::File::open(full).unwrap();
        xattr::set(file.as_fd(), name.as_bytes(), value.as_bytes(), 0).unwrap();
    }

    pub fn scan(&self) -> ChangeSet {
        scan(&self.roots()).unwrap()
    }

    pub fn settled(&self) -> Vec<Settled> {
        settle(&self.roots(), &self.scan()).unwrap()
    }

    /// The changes as lines: letter, path, and the old path of a rename.
    pub fn changes(&self) -> Vec<String> {
        let line = |s: &Settled| {
            let c = &s.change;
            let from = c.from.as_ref().map(|f| format!(" < {f}")).unwrap_or_default();
            let star = if s.content && c.what == sbx_fuse::base::What::Renamed { "*" } else { "" };
            format!("{}{star} {}{from}", c.what.letter(), c.path)
        };
        self.settled().iter().map(line).collect()
    }

    pub fn plan(&self, paths: &[&str]) -> Plan {
        let selection = match paths {
            [] => Selection::All,
            some => Selection::Paths(some.iter().map(|p| (0, rel(p))).collect()),
        };
        review::plan(&self.settled(), &selection).unwrap()
    }

    pub fn try_apply(&self, paths: &[&str]) -> sbx_fuse::base::Result<Report> {
        let roots = self.roots();
        let plan = self.plan(paths);
        let set = self.scan();
        let mut dropper = Offline::new(&roots, &set, Leave::Applied);
        apply(&roots, &plan, &mut dropper, &mut |_| {})
    }

    pub fn apply(&self, paths: &[&str]) -> &Self {
        let report = self.try_apply(paths).unwrap();
        assert!(report.warnings.is_empty(), "{:?}", report.warnings);
        assert!(report.kept.is_empty(), "{:?}", report.kept);
        assert_clean(&self.real(""));
        assert_eq!(fs::read_dir(self.dir.path().join("work")).unwrap().count(), 0);
        self
    }

    pub fn diff(&self) -> Vec<u8> {
        let mut out = Vec::new();
        render(&self.roots(), &self.settled(), Options::default(), &mut out).unwrap();
        out
    }

    /// The real tree as lines: type, permissions, path and content.
    pub fn tree(&self) -> Vec<String> {
        tree(&self.real(""))
    }

    pub fn upper_is_empty(&self) -> bool {
        fs::read_dir(self.upper("")).unwrap().count() == 0
    }
}

/// Directories that may not be written to could not be removed otherwise.
impl Drop for World {
    fn drop(&mut self) {
        let writable = |m: &fs::Metadata| m.mode() & 0o200 != 0;
        for entry in walkdir::WalkDir::new(self.dir.path()).into_iter().flatten() {
            if let Ok(meta) = entry.metadata()
                && meta.is_dir()
                && !writable(&meta)
                && let Err(e) = fs::set_permissions(entry.path(), fs::Permissions::from_mode(0o700))
            {
                eprintln!("{} stays: {e}", entry.path().display());
            }
        }
    }
}

fn make(full: &Path, path: &str, content: &str) {
    if path.ends_with('/') {
        fs::create_dir_all(full).unwrap();
        return;
    }
    fs::create_dir_all(full.parent().unwrap()).unwrap();
    match content.strip_prefix("-> ") {
        Some(target) => std::os::unix::fs::symlink(target, full).unwrap(),
        None => fs::write(full, content).unwrap(),
    }
}

/// Real files are an hour old: what a session writes is younger.
fn age(full: &Path) {
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    if fs::symlink_metadata(full).unwrap().is_file() {
        fs::File::options().write(true).open(full).unwrap().set_modified(old).unwrap();
    }
}

pub fn tree(top: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    for entry in walkdir::WalkDir::new(top).min_depth(1).sort_by_file_name() {
        let entry = entry.unwrap();
        let meta = entry.path().symlink_metadata().unwrap();
        let path = entry.path().strip_prefix(top).unwrap();
        let shown = sbx_fuse::base::quote(path.as_os_str().as_bytes());
        let kind = meta.file_type();
        lines.push(if kind.is_dir() {
            format!("{shown}/")
        } else if kind.is_symlink() {
            format!("{shown} -> {}", fs::read_link(entry.path()).unwrap().display())
        } else if kind.is_file() {
            let exec = if meta.permissions().mode() & 0o100 != 0 { "*" } else { "" };
            let bytes = fs::read(entry.path()).unwrap();
            format!("{shown}{exec} = {}", sbx_fuse::base::quote(&bytes))
        } else {
            format!("{shown} ({:o})", meta.mode() & 0o170000)
        });
    }
    lines
}

fn assert_clean(top: &Path) {
    for entry in walkdir::WalkDir::new(top) {
        let name = entry.unwrap().file_name().to_owned();
        assert!(!name.as_bytes().starts_with(b".sbx-fuse."), "left behind: {name:?}");
    }
}

pub fn run(dir: &Path, program: &str, args: &[&str]) -> (bool, String) {
    let mut command = Command::new(program);
    command.args(args).current_dir(dir).env_clear().env("PATH", "/usr/bin:/bin").env("HOME", dir);
    command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CEILING_DIRECTORIES", "/");
    let out = command.output().unwrap();
    let text = [out.stdout, out.stderr].concat();
    (out.status.success(), sbx_fuse::base::quote(&text))
}

pub fn copy_tree(from: &Path, to: &Path) {
    let from: &OsStr = from.as_os_str();
    let done = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(done.success());
}
