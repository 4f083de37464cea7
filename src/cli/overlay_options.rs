//! The options of `overlay`, as mount(8), the kernel's overlayfs and fuse-overlayfs know them.

use crate::base::{Error, Result, quote};
use crate::layer::StatXattr;
use crate::union::{IdRange, Stats, View};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// What the options ask for.
#[derive(Debug, Default)]
pub(super) struct Options {
    /// Topmost first.
    pub lowers: Vec<PathBuf>,
    pub upper: Option<PathBuf>,
    pub work: Option<PathBuf>,
    pub view: View,
    /// Let all users in.
    pub allow_other: bool,
    /// `MS_*` flags of mount(2).
    pub flags: u64,
    /// What `/proc/mounts` shows as the source.
    pub fsname: Option<String>,
    /// Options for the file system in the kernel, each after a comma: security labels.
    pub labels: Vec<u8>,
    pub foreground: bool,
}

/// A word that sets (true) or clears a flag of mount(2).
const FLAGS: &[(&str, u64, bool)] = &[
    ("ro", libc::MS_RDONLY, true),
    ("rw", libc::MS_RDONLY, false),
    ("nosuid", libc::MS_NOSUID, true),
    ("suid", libc::MS_NOSUID, false),
    ("nodev", libc::MS_NODEV, true),
    ("dev", libc::MS_NODEV, false),
    ("noexec", libc::MS_NOEXEC, true),
    ("exec", libc::MS_NOEXEC, false),
    ("noatime", libc::MS_NOATIME, true),
    ("atime", libc::MS_NOATIME, false),
    ("nodiratime", libc::MS_NODIRATIME, true),
    ("diratime", libc::MS_NODIRATIME, false),
    ("relatime", libc::MS_RELATIME, true),
    ("norelatime", libc::MS_RELATIME, false),
    ("strictatime", libc::MS_STRICTATIME, true),
    ("nostrictatime", libc::MS_STRICTATIME, false),
    ("sync", libc::MS_SYNCHRONOUS, true),
    ("async", libc::MS_SYNCHRONOUS, false),
    ("dirsync", libc::MS_DIRSYNC, true),
];

/// Words that ask for what we do anyway, or that are for mount(8) and not for us.
const NOTHING_TO_DO: &[&str] = &[
    "lazytime",
    "nolazytime",
    "userxattr",
    "default_permissions",
    "clone_fd",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "nousers",
    "owner",
    "noowner",
    "group",
    "nogroup",
    "_netdev",
    "nofail",
    "defaults",
    "big_writes",
    "nonempty",
    "splice_read",
    "splice_write",
    "splice_move",
];

/// Settings of fuse-overlayfs, libfuse and mount(8) whose value makes no difference here.
const NO_DIFFERENCE: &[&str] =
    &["max_threads", "max_idle_threads", "threaded", "timeout", "fast_ino", "subtype", "max_read", "comment"];

/// What the kernel's overlayfs can do and we do not; asking for it to be off is asking for nothing.
const MUST_BE_OFF: &[&str] = &["redirect_dir", "index", "metacopy", "nfs_export", "xino", "verity"];

/// Options with a value of their own meaning.
const SETTINGS: &[&str] = &[
    "lowerdir",
    "upperdir",
    "workdir",
    "uidmapping",
    "gidmapping",
    "squash_to_uid",
    "squash_to_gid",
    "fsync",
    "fsname",
    "xattr_permissions",
];

/// Words with a meaning of their own.
const WORDS: &[&str] =
    &["squash_to_root", "static_nlink", "noacl", "volatile", "allow_other", "allow_root", "debug"];

impl Options {
    /// What holds when nothing is said: root may use set-uid programs and lets everybody in, as fuse-overlayfs does.
    pub(super) fn new(root: bool) -> Options {
        let flags = libc::MS_NODEV | libc::MS_NOATIME;
        Options {
            flags: if root { flags } else { flags | libc::MS_NOSUID },
            allow_other: root,
            view: View { stats: Stats::Marked, ..View::default() },
            ..Options::default()
        }
    }

    /// Reads the arguments of every `-o`, in order; a later one wins.
    ///
    /// # Errors
    /// `Usage`, naming the option that is unknown or has no such value.
    pub(super) fn read<'a>(mut self, lists: impl IntoIterator<Item = &'a OsStr>) -> Result<Options> {
        let (mut squash_root, mut squash_uid, mut squash_gid) = (false, None, None);
        for list in lists {
            for option in join_ranges(split(list.as_bytes(), b',')) {
                let (key, value) = match option.iter().position(|b| *b == b'=') {
                    Some(at) => (&option[..at], Some(&option[at + 1..])),
                    None => (&option[..], None),
                };
                let key = std::str::from_utf8(key).map_err(|_| unknown(&option))?;
                match (key, value) {
                    ("", None) => {}
                    ("squash_to_root", None) => squash_root = true,
                    ("squash_to_uid", Some(v)) => squash_uid = Some(number(key, v)?),
                    ("squash_to_gid", Some(v)) => squash_gid = Some(number(key, v)?),
                    _ => self.set(key, value, &option)?,
                }
            }
        }
        let root = squash_root.then_some(0);
        self.view.uids.squash = squash_uid.or(root);
        self.view.gids.squash = squash_gid.or(root);
        self.check()
    }

    fn set(&mut self, key: &str, value: Option<&[u8]>, option: &[u8]) -> Result<()> {
        if let (Some((_, flag, on)), None) = (FLAGS.iter().find(|f| f.0 == key), value) {
            self.flags = if *on { self.flags | flag } else { self.flags & !flag };
            return Ok(());
        }
        match (key, value) {
            ("lowerdir", Some(v)) => self.lowers = split(v, b':').iter().map(|dir| path(dir)).collect(),
            ("upperdir", Some(v)) => self.upper = Some(path(v)),
            ("workdir", Some(v)) => self.work = Some(path(v)),
            ("uidmapping", Some(v)) => self.view.uids.ranges = ranges(key, v)?,
            ("gidmapping", Some(v)) => self.view.gids.ranges = ranges(key, v)?,
            ("static_nlink", None) => self.view.static_nlink = true,
            ("noacl", None) => self.view.no_acl = true,
            ("volatile", None) => self.view.volatile = true,
            ("fsync", Some(v)) => self.view.volatile = number(key, v)? == 0,
            ("allow_other", None) => self.allow_other = true,
            ("allow_root", None) => self.allow_other = false,
            ("debug", None) => self.foreground = true,
            ("fsname", Some(v)) => self.fsname = Some(text(key, &plain(v))?),
            ("context" | "fscontext" | "defcontext" | "rootcontext", Some(_)) => {
                self.labels.push(b',');
                self.labels.extend_from_slice(option);
            }
            ("xattr_permissions", Some(b"0")) => self.view.stats = Stats::Marked,
            ("xattr_permissions", Some(b"1")) => self.view.stats = Stats::Kept(StatXattr::Security),
            ("xattr_permissions", Some(b"2")) => self.view.stats = Stats::Kept(StatXattr::User),
            ("xattr_permissions", Some(v)) => {
                return Err(bad_value(key, v, "0 (off), 1 (as root) or 2"));
            }
            (key, None) if NOTHING_TO_DO.contains(&key) || key.starts_with("x-") => {}
            (key, Some(_)) if NO_DIFFERENCE.contains(&key) || key.starts_with("x-") => {}
            (key, Some(b"off")) if MUST_BE_OFF.contains(&key) => {}
            (key, _) if MUST_BE_OFF.contains(&key) => {
                return Err(Error::usage(format!("{} is not supported", quote(option)))
                    .hint(format!("leave it out, or say {key}=off")));
            }
            (key, None) if SETTINGS.contains(&key) => {
                return Err(
                    Error::usage(format!("the option {key} needs a value")).hint(format!("-o {key}=…"))
                );
            }
            (key, Some(_)) if WORDS.contains(&key) || FLAGS.iter().any(|f| f.0 == key) => {
                return Err(
                    Error::usage(format!("the option {key} takes no value")).hint(format!("-o {key}"))
                );
            }
            _ => return Err(unknown(option)),
        }
        Ok(())
    }

    fn check(self) -> Result<Options> {
        let wrong = |what: &str, hint: &str| Err(Error::usage(what).hint(hint));
        if self.lowers.is_empty() || self.lowers.iter().any(|l| l.as_os_str().is_empty()) {
            return wrong("the layers below are missing", "-o lowerdir=TOPMOST:…:LOWEST");
        }
        if self.lowers.len() > MAX_LOWERS {
            return wrong(
                &format!("{} layers are too many, {MAX_LOWERS} at most", self.lowers.len()),
                "squash some of them into one",
            );
        }
        match (&self.upper, &self.work) {
            (Some(_), None) => wrong(
                "upperdir needs a workdir beside it",
                "-o workdir=DIR, an empty directory on the same file system",
            ),
            (None, Some(_)) => wrong(
                "workdir without upperdir says nothing",
                "give upperdir too, or leave workdir out for a view that cannot be written",
            ),
            _ => Ok(self),
        }
    }
}

/// As the kernel's overlayfs (`OVL_MAX_STACK`).
const MAX_LOWERS: usize = 500;

/// Splits at `separator` outside of double quotes and not after a backslash; both stay in the parts.
fn split(list: &[u8], separator: u8) -> Vec<Vec<u8>> {
    let mut parts = vec![Vec::new()];
    let (mut escaped, mut quoted) = (false, false);
    for &byte in list {
        if byte == separator && !escaped && !quoted {
            parts.push(Vec::new());
            continue;
        }
        quoted ^= byte == b'"' && !escaped && separator == b',';
        escaped = byte == b'\\' && !escaped;
        if let Some(part) = parts.last_mut() {
            part.push(byte);
        }
    }
    parts
}

/// A mapping may be several ranges after commas: `uidmapping=0:1000:1,1:110000:65536`.
fn join_ranges(options: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let mut joined: Vec<Vec<u8>> = Vec::new();
    for option in options {
        let numbers = !option.is_empty() && option.iter().all(|b| b.is_ascii_digit() || *b == b':');
        match joined.last_mut() {
            Some(last)
                if numbers && (last.starts_with(b"uidmapping=") || last.starts_with(b"gidmapping=")) =>
            {
                last.push(b':');
                last.extend(option);
            }
            _ => joined.push(option),
        }
    }
    joined
}

/// Without the backslashes that kept a comma, colon or backslash from its meaning.
fn plain(escaped: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(escaped.len());
    let mut bytes = escaped.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        match (byte, bytes.peek()) {
            (b'\\', Some(&next @ (b',' | b':' | b'\\'))) => {
                out.push(next);
                bytes.next();
            }
            _ => out.push(byte),
        }
    }
    out
}

fn path(escaped: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(&plain(escaped)))
}

fn text(key: &str, value: &[u8]) -> Result<String> {
    String::from_utf8(value.to_vec()).map_err(|_| bad_value(key, value, "text"))
}

fn number(key: &str, value: &[u8]) -> Result<u32> {
    let text = std::str::from_utf8(value).ok();
    text.and_then(|t| t.parse().ok()).ok_or_else(|| bad_value(key, value, "a number"))
}

fn ranges(key: &str, value: &[u8]) -> Result<Vec<IdRange>> {
    let numbers: Vec<u32> = value.split(|b| *b == b':').map(|n| number(key, n)).collect::<Result<_>>()?;
    let (triples, rest) = numbers.as_chunks::<3>();
    if !rest.is_empty() {
        return Err(bad_value(key, value, "ID:SHOWN-ID:COUNT, one or several times"));
    }
    Ok(triples.iter().map(|&[host, shown, len]| IdRange { host, shown, len }).collect())
}

fn bad_value(key: &str, value: &[u8], wanted: &str) -> Error {
    Error::usage(format!("the option {key} cannot be {}", quote(value))).hint(format!("it takes {wanted}"))
}

fn unknown(option: &[u8]) -> Error {
    let key = option.split(|b| *b == b'=').next().unwrap_or_default();
    let known = SETTINGS.iter().chain(WORDS).copied().chain(FLAGS.iter().map(|f| f.0));
    let near = known.min_by_key(|k| distance(k.as_bytes(), key)).filter(|k| distance(k.as_bytes(), key) <= 2);
    let e = Error::usage(format!("there is no option {}", quote(option)));
    match near {
        Some(near) => e.hint(format!("did you mean {near}?")),
        None => e.hint("all options: sbx-fuse overlay --help"),
    }
}

/// How many letters must be put in, taken out or changed to make one of the other (Levenshtein).
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut corner = i;
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let changed = corner + usize::from(x != y);
            corner = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(corner + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(list: &str) -> Result<Options> {
        Options::new(false).read([OsStr::new(list)])
    }

    fn refused(list: &str) -> String {
        read(list).err().map(|e| e.to_string()).unwrap_or_else(|| "accepted".into())
    }

    #[test]
    fn layers_are_split_at_colons_that_are_not_escaped() {
        let o = read(r"lowerdir=/a:/b\:c:/d\\:/e\,f,upperdir=/u\,v,workdir=w").unwrap();
        assert_eq!(o.lowers, ["/a", "/b:c", "/d\\", "/e,f"].map(PathBuf::from));
        assert_eq!(o.upper, Some("/u,v".into()));
        assert_eq!(o.work, Some("w".into()));
    }

    #[test]
    fn a_mapping_may_be_several_ranges_with_colons_or_commas() {
        let want =
            [(0, 1000, 1), (1, 110_000, 65_536)].map(|(host, shown, len)| IdRange { host, shown, len });
        for form in ["0:1000:1:1:110000:65536", "0:1000:1,1:110000:65536"] {
            let o = read(&format!("lowerdir=l,uidmapping={form},ro,gidmapping={form}")).unwrap();
            assert_eq!(o.view.uids.ranges, want);
            assert_eq!(o.view.gids.ranges, want);
            assert_ne!(o.flags & libc::MS_RDONLY, 0);
        }
    }

    #[test]
    fn squashing_to_an_id_goes_before_squashing_to_root() {
        let o = read("squash_to_uid=7,squash_to_root,lowerdir=l").unwrap();
        assert_eq!((o.view.uids.squash, o.view.gids.squash), (Some(7), Some(0)));
    }

    #[test]
    fn flags_hold_in_order_and_root_may_use_set_uid_programs() {
        let o =
            Options::new(true).read(["lowerdir=l,nosuid,noexec", "suid,exec,dev"].map(OsStr::new)).unwrap();
        assert_eq!(o.flags, libc::MS_NOATIME);
        assert!(o.allow_other);
        let o = read("lowerdir=l").unwrap();
        assert_eq!(o.flags, libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOATIME);
        assert!(!o.allow_other);
    }

    #[test]
    fn a_label_keeps_its_commas() {
        let o = read(r#"lowerdir=l,context="system_u:object_r:x_t:s0:c1,c2",volatile"#).unwrap();
        assert_eq!(o.labels, br#",context="system_u:object_r:x_t:s0:c1,c2""#);
        assert!(o.view.volatile);
    }

    #[test]
    fn owners_and_modes_are_in_an_attribute_only_if_asked() {
        let stats = |list| read(list).unwrap().view.stats;
        assert_eq!(stats("lowerdir=l"), Stats::Marked);
        assert_eq!(stats("lowerdir=l,xattr_permissions=1"), Stats::Kept(StatXattr::Security));
        assert_eq!(stats("lowerdir=l,xattr_permissions=2"), Stats::Kept(StatXattr::User));
        assert_eq!(stats("lowerdir=l,xattr_permissions=2,xattr_permissions=0"), Stats::Marked);
    }

    #[test]
    fn what_is_unknown_or_wrong_is_named_with_what_to_do() {
        assert_eq!(
            refused("lowerdir=l,bogus=1"),
            "there is no option bogus=1\nhint: all options: sbx-fuse overlay --help"
        );
        assert_eq!(
            refused("lowerdir=l,lowrdir=x"),
            "there is no option lowrdir=x\nhint: did you mean lowerdir?"
        );
        assert_eq!(
            refused("lowerdir=l,metacopy=on"),
            "metacopy=on is not supported\nhint: leave it out, or say metacopy=off"
        );
        assert_eq!(refused("lowerdir=l,metacopy=off"), "accepted");
        assert_eq!(
            refused("lowerdir=l,xattr_permissions=3"),
            "the option xattr_permissions cannot be 3\nhint: it takes 0 (off), 1 (as root) or 2"
        );
        assert_eq!(refused("lowerdir=l,noacl=1"), "the option noacl takes no value\nhint: -o noacl");
        assert_eq!(refused("lowerdir"), "the option lowerdir needs a value\nhint: -o lowerdir=…");
        assert_eq!(refused("ro"), "the layers below are missing\nhint: -o lowerdir=TOPMOST:…:LOWEST");
        assert_eq!(
            refused("lowerdir=a::b"),
            "the layers below are missing\nhint: -o lowerdir=TOPMOST:…:LOWEST"
        );
        assert_eq!(
            refused("lowerdir=l,squash_to_uid=me"),
            "the option squash_to_uid cannot be me\nhint: it takes a number"
        );
        assert!(refused("lowerdir=l,upperdir=u").starts_with("upperdir needs a workdir"));
        assert!(refused("lowerdir=l,uidmapping=1:2").contains("ID:SHOWN-ID:COUNT"));
    }
}
