//! The review in a terminal: the real program on a pseudo-terminal of 80x24, keys sent to it, its screen compared.

// Helpers of tests may fail as tests do.
#![allow(clippy::unwrap_used)]

use crate::world::{World, program};
use nix::pty::{OpenptyResult, Winsize, openpty};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

struct Terminal {
    screen: Arc<Mutex<vt100::Parser>>,
    keys: std::fs::File,
    child: Running,
}

impl Terminal {
    /// Starts `sbx-fuse ARGS` on a terminal of its own.
    fn start(w: &World, args: &[&str], color: bool) -> Terminal {
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        let OpenptyResult { master, slave } = openpty(Some(&size), None).unwrap();
        let mut words = vec!["--ctty", "--wait", program().to_str().unwrap()];
        words.extend(args);
        let mut command = w.command(Path::new("/usr/bin/setsid"), &words);
        command.env("TERM", "xterm").stdin(slave.try_clone().unwrap());
        command.stdout(Stdio::from(slave.try_clone().unwrap())).stderr(Stdio::from(slave));
        if !color {
            command.env("NO_COLOR", "1");
        }
        let child = Running(command.spawn().unwrap());
        drop(command);
        let screen = Arc::new(Mutex::new(vt100::Parser::new(24, 80, 0)));
        let (keys, theirs) = (std::fs::File::from(master.try_clone().unwrap()), screen.clone());
        let mut output = std::fs::File::from(master);
        std::thread::spawn(move || {
            let mut buf = [0; 4096];
            // The end of the terminal is an error (EIO), not an end of file.
            while let Ok(n @ 1..) = output.read(&mut buf) {
                theirs.lock().unwrap().process(&buf[..n]);
            }
        });
        Terminal { screen, keys, child }
    }

    fn text(&self) -> String {
        let text = self.screen.lock().unwrap().screen().contents();
        text.lines().map(|l| l.trim_end().to_owned() + "\n").collect()
    }

    /// Waits until the screen shows `text`.
    fn shows(&self, text: &str) -> &Self {
        let start = Instant::now();
        while !self.text().contains(text) {
            assert!(start.elapsed() < Duration::from_secs(120), "never shown: {text:?}\n{}", self.text());
            std::thread::sleep(Duration::from_millis(5));
        }
        self
    }

    /// The screen is the snapshot `name`; it may still be on its way there, since a terminal is drawn piece by piece.
    fn same_as(&self, name: &str) {
        let path =
            format!("{}/fuse-tests/cli/snapshots/cli__review__{name}.snap", env!("CARGO_MANIFEST_DIR"));
        let stored = std::fs::read_to_string(path).unwrap_or_default();
        let want = stored.splitn(3, "---\n").nth(2).unwrap_or_default().trim_end();
        let start = Instant::now();
        while self.text().trim_end() != want && start.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(5));
        }
        insta::assert_snapshot!(name, self.text());
    }

    fn press(&self, keys: &str) -> &Self {
        (&self.keys).write_all(keys.as_bytes()).unwrap();
        self
    }

    fn ends(mut self) {
        assert!(self.child.0.wait().unwrap().success(), "{}", self.text());
    }
}

/// A command in the background, which a test that fails does not leave behind.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn numbered(n: usize) -> String {
    (1..=n).map(|i| format!("line {i}\n")).collect()
}

const THREE: &str =
    "sed -i -e 's/line 5$/FIVE/' -e 's/line 20$/TWENTY/' -e 's/line 35$/THIRTY-FIVE/' lines.txt";

/// A session with three hunks in `lines.txt` and changes of all sorts beside it.
fn session() -> World {
    let w = World::new();
    w.write("home/project/lines.txt", &numbered(40));
    let script = format!(
        "{THREE}; echo 'export A=1' > .envrc; rm gone.txt; mkdir -p target/debug node_modules/x src/deep; \
         echo 1 > target/debug/a; echo 1 > target/debug/b; echo 1 > node_modules/x/y; echo new > src/deep/new.txt; \
         printf 'red \\033[31m\\n' > \"$(printf 'esc\\033[31m')\"; echo 1 > \"$(printf 'not-utf8-\\377')\""
    );
    w.quietly(&["run", "-s", "work", "--", "sh", "-ec", &script]);
    w
}

#[test]
fn one_hunk_of_three_is_applied_and_the_others_stay() {
    let w = session();
    let t = Terminal::start(&w, &["review", "-s", "work"], false);
    t.shows("look first").shows("q leave");
    t.same_as("first_screen");
    t.press("/lines\r").shows("@@ -2,7 +2,7 @@");
    t.press("\t").shows("Tab tree");
    t.press("]]] ");
    t.shows("1 chosen").shows("x+THIRTY-FIVE");
    t.press("[").press(" ").shows("x+TWENTY").press("]").press(" ").shows(" +THIRTY-FIVE").shows("x+TWENTY");
    t.same_as("one_hunk_chosen");
    t.press("a").shows("Apply a part of 1 file? [y/N]");
    t.press("y").shows("applied: a part of 1 file");
    t.press(" ").press("/lines\r").shows("@@ -2,7 +2,7 @@");
    t.same_as("the_rest_after_applying");
    t.press("q");
    t.ends();
    assert_eq!(w.read("home/project/lines.txt"), numbered(40).replace("line 20\n", "TWENTY\n"));
    let diff = w.quietly(&["diff", "-s", "work", "lines.txt"]);
    assert!(
        diff.contains("+FIVE\n") && diff.contains("+THIRTY-FIVE\n") && diff.matches("@@ -").count() == 2,
        "{diff}"
    );
    assert!(!diff.contains("\n+TWENTY"), "{diff}");
    w.quietly(&["verify", "-s", "work"]);
    // What stayed is based on the new real file: applying it is no conflict.
    w.quietly(&["apply", "-s", "work", "-y", "lines.txt"]);
    let all = numbered(40).replace("line 5\n", "FIVE\n").replace("line 20\n", "TWENTY\n");
    assert_eq!(w.read("home/project/lines.txt"), all.replace("line 35\n", "THIRTY-FIVE\n"));
    assert!(!w.quietly(&["changes", "-s", "work"]).contains("lines.txt"));
}

#[test]
fn hostile_names_are_quoted_and_colours_only_where_wanted() {
    let w = session();
    for color in [false, true] {
        let t = Terminal::start(&w, &["review", "-s", "work"], color);
        t.shows("\"esc\\033[31m\"").shows("\"not-utf8-\\377\"").press("/esc\r").shows("+red ^[[31m");
        let screen = t.screen.lock().unwrap().screen().clone();
        let colored = (0..24)
            .flat_map(|r| (0..80).map(move |c| (r, c)))
            .any(|(r, c)| screen.cell(r, c).is_some_and(|cell| cell.fgcolor() != vt100::Color::Default));
        assert_eq!(colored, color);
        t.press("q");
        t.ends();
    }
}

/// While a command runs in the session: the real file gets its part, the command goes on seeing all of its own.
#[test]
fn a_hunk_is_applied_while_the_session_is_in_use() {
    let w = World::new();
    w.write("home/project/lines.txt", &numbered(40));
    let script = format!(
        "{THREE}; echo > ready; until [ -e go ]; do sleep 0.02; done; cp lines.txt seen; sed -i s/^FIVE/5/ lines.txt"
    );
    let mut running = Running(w.sbx(&["run", "-s", "work", "--", "sh", "-ec", &script]).spawn().unwrap());
    let upper = w.at("home/.local/state/sbx-fuse/sessions/work/roots/0/upper/ready");
    let start = Instant::now();
    while upper.symlink_metadata().is_err() {
        assert!(start.elapsed() < Duration::from_secs(60), "the command never came to it");
        std::thread::sleep(Duration::from_millis(5));
    }
    let t = Terminal::start(&w, &["review", "-s", "work"], false);
    t.shows("q leave").press("/lines\r").shows("@@ -2,7 +2,7 @@");
    t.press("\t").shows("Tab tree").press("] ").shows("x+TWENTY");
    t.press("a").shows("Apply a part of 1 file? [y/N]").press("y").shows("applied: a part of 1 file");
    t.press(" ").press("q");
    t.ends();
    let twenty = numbered(40).replace("line 20\n", "TWENTY\n");
    assert_eq!(w.read("home/project/lines.txt"), twenty);
    let diff = w.quietly(&["diff", "-s", "work", "lines.txt"]);
    assert!(
        diff.contains("+FIVE\n") && diff.contains("+THIRTY-FIVE\n") && !diff.contains("+TWENTY"),
        "{diff}"
    );
    // Another one, for scripts; what is left is still no conflict.
    w.quietly(&["review", "-s", "work", "--hunk", "lines.txt:2"]);
    assert_eq!(w.read("home/project/lines.txt"), twenty.replace("line 35\n", "THIRTY-FIVE\n"));
    w.write("home/project/go", "");
    assert!(running.0.wait().unwrap().success());
    assert!(w.quietly(&["run", "-s", "work", "--", "cat", "seen"]).contains("FIVE\n"));
    w.quietly(&["verify", "-s", "work"]);
    w.quietly(&["apply", "-s", "work", "-y", "lines.txt"]);
    let all = twenty.replace("line 35\n", "THIRTY-FIVE\n").replace("line 5\n", "5\n");
    assert_eq!(w.read("home/project/lines.txt"), all);
}

#[test]
fn marks_of_what_was_reviewed_outlive_the_review_but_not_a_change() {
    let w = World::new();
    w.quietly(&["run", "-s", "work", "--", "sh", "-ec", "echo 1 > one; echo 2 > two; rm gone.txt"]);
    let t = Terminal::start(&w, &["review", "-s", "work"], false);
    t.shows("0 reviewed").press("/one\r").shows("+1").press("r").shows("1 reviewed");
    t.press("/gone\r").press("r").shows("2 reviewed").press("q");
    t.ends();
    let t = Terminal::start(&w, &["review", "-s", "work"], false);
    t.shows("2 reviewed").shows("*").press("q");
    t.ends();
    w.quietly(&["run", "-s", "work", "--", "sh", "-ec", "echo 3 >> one"]);
    let t = Terminal::start(&w, &["review", "-s", "work"], false);
    t.shows("1 reviewed").press("/gone\r").press("r").shows("0 reviewed").press("q");
    t.ends();
    let t = Terminal::start(&w, &["review", "-s", "work"], false);
    t.shows("0 reviewed").press("q");
    t.ends();
}

#[test]
fn a_range_of_lines_a_file_and_a_directory() {
    let w = World::new();
    w.write("home/project/lines.txt", &numbered(6));
    let script = "sed -i -e 's/line 2/two/' -e 's/line 3/three/' -e 's/line 4/four/' lines.txt; \
                  mkdir d; echo 1 > d/a; echo 2 > d/b; echo 3 > other";
    w.quietly(&["run", "-s", "work", "--", "sh", "-ec", script]);
    let t = Terminal::start(&w, &["review", "-s", "work"], false);
    t.shows("d/ (3)").press(" ").shows("3 chosen").press("/lines\r\t").shows("+four");
    // Down to "-line 2"; its removal, and with a range the first of the additions.
    t.press("jjx").shows("x-line 2").shows("4 chosen");
    t.press("jjjvj ")
        .shows("x+two")
        .shows("x+three")
        .press("a")
        .shows("Apply 3 added, a part of 1 file? [y/N]");
    t.press("y").shows("applied: 3 added").press(" ").shows("0 chosen").press("?").shows("choose one line");
    t.same_as("keys");
    t.press(" q");
    t.ends();
    assert_eq!(w.read("home/project/lines.txt"), "line 1\nline 3\nline 4\ntwo\nthree\nline 5\nline 6\n");
    assert_eq!((w.read("home/project/d/a"), w.read("home/project/d/b")), ("1\n".into(), "2\n".into()));
    assert_eq!(w.quietly(&["changes", "-s", "work"]), "M lines.txt\nA other\n");
}

#[test]
fn hunks_by_number_for_scripts() {
    let mut w = session();
    w.run(&["review", "-s", "work", "--hunk", "lines.txt:1,3"]);
    assert_eq!(
        w.read("home/project/lines.txt"),
        numbered(40).replace("line 5\n", "FIVE\n").replace("line 35\n", "THIRTY-FIVE\n")
    );
    w.run(&["verify", "-s", "work"]);
    w.run(&["review", "-s", "work", "--hunk", "lines.txt:2"]);
    w.run(&["review", "-s", "work", "--hunk", "src/deep/new.txt:1"]);
    w.run(&["review", "-s", "work", "--hunk", "lines.txt"]);
    w.run(&["review", "-s", "work"]);
    w.quietly(&[
        "run",
        "-s",
        "two",
        "--",
        "sh",
        "-ec",
        "sed -i -e 's/line 2$/2/' -e 's/line 30$/30/' lines.txt",
    ]);
    w.write("home/project/lines.txt", "theirs\n");
    w.run(&["review", "-s", "two", "--hunk", "lines.txt:1"]);
    assert_eq!(w.read("home/project/lines.txt"), "theirs\n");
    w.run(&["changes", "-s", "two"]);
    crate::same_as_before!(w);
}

#[test]
fn risks_and_noise_in_every_listing() {
    let mut w = session();
    w.run(&["status", "-s", "work"]);
    w.run(&["changes", "-s", "work"]);
    w.run(&["changes", "-s", "work", "--all", "target", "lines.txt"]);
    w.run(&["changes", "-s", "work", "--no-ignored"]);
    w.run(&["diff", "-s", "work", "--stat"]);
    w.run(&["export", "-s", "work"]);
    w.run(&["export", "-s", "work", "--patch", "--no-ignored", "lines.txt", ".envrc"]);
    w.run(&["export", "-s", "work", "--tar", "-o", "../out.tar", "gone.txt", "src"]);
    assert_eq!(w.shell("tar tf ../out.tar; ls .."), "src/\nsrc/deep/\nsrc/deep/new.txt\nout.tar\nproject\n");
    w.mkdir("home/.config/sbx-fuse");
    w.write(
        "home/.config/sbx-fuse/config.toml",
        "[[risk]]\npattern = \"lines.*\"\nwhy = \"we read it aloud\"\n",
    );
    w.run(&["changes", "-s", "work", "lines.txt"]);
    w.write("home/.config/sbx-fuse/config.toml", "[[risk]]\nwhy = \"no pattern\"\n");
    w.run(&["changes", "-s", "work"]);
    w.write("home/.config/sbx-fuse/config.toml", "");
    w.run(&["apply", "-s", "work", "-y", "--no-ignored"]);
    w.run(&["changes", "-s", "work", "--all"]);
    crate::same_as_before!(w);
}
