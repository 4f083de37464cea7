//! Uppers travel: what one program wrote, another one mounts, sees the same and goes on with.

use crate::bench::{Bench, same};

pub const TESTS: &[(&str, fn())] = &[
    ("the_work_gives_what_it_gives_on_a_plain_copy", plain),
    ("ours_then_kernel", || exchange(ours, kernel)),
    ("kernel_then_ours", || exchange(kernel, ours)),
    ("ours_then_fuse_overlayfs", || exchange(ours, fuse_overlayfs)),
    ("fuse_overlayfs_then_ours", || exchange(fuse_overlayfs, ours)),
    ("ours_as_a_lower_of_the_kernels", || as_lower(ours, kernel)),
    ("the_kernels_as_a_lower_of_ours", || as_lower(kernel, ours)),
    ("ours_as_a_lower_of_fuse_overlayfs", || as_lower(ours, fuse_overlayfs)),
    ("fuse_overlayfss_as_a_lower_of_ours", || as_lower(fuse_overlayfs, ours)),
];

const UP: &str = "lowerdir=l1:l2,upperdir=u,workdir=w";

/// Two layers with something of everything.
const SETUP: &str = r#"
umask 022
for l in l1 l2; do
    mkdir -p $l/common/sub $l/only-$l/deep/er $l/gone/x $l/replaced $l/emptied
    for i in 1 2 3 4 5 6; do echo "$l $i" >$l/common/$l-$i; echo "$l $i" >$l/common/sub/$l-$i; done
    echo $l >$l/common/both; echo $l >$l/gone/x/$l; echo $l >$l/only-$l/deep/er/file; echo $l >$l/emptied/$l
    echo $l >$l/replaced/$l; ln -s $l-1 $l/common/link-$l; mkfifo $l/common/fifo-$l
    head -c 300000 /dev/urandom >$l/big-$l
    setfattr -n user.note -v "of $l" $l/common/$l-1
    chmod 751 $l/only-$l; chmod 4755 $l/common/$l-2; touch -d @1234567890.5 $l/common/$l-3
done
"#;

/// Makes, changes, removes, renames, replaces; in a mount, then again in the next one.
const WORK: &str = r#"
umask 027
cd "$1"
echo more >>common/l1-1
echo more >>common/l2-1
: >common/l1-4
printf patch | dd of=big-l2 bs=1 seek=150000 conv=notrunc status=none
rm common/l1-2 common/sub/l2-2 common/both
rm -r gone
mkdir gone; echo anew >gone/anew
mkdir gone/x
rm -r replaced; echo 'now a file' >replaced
rm emptied/*
mv common/l2-3 common/renamed
mv common/l1-5 common/l1-6
mv only-l1 moved
mv common/sub/l1-1 only-l2/deep/er/file
chmod 600 common/sub/l1-3
setfattr -n user.new -v 1 common/sub/l1-4
setfattr -x user.note common/l2-1
touch -d @1000000000.25 common/sub/l2-4
ln common/sub/l2-5 common/hard
ln -sfn elsewhere common/link-l1
mkdir -p new/tree; echo n >new/tree/n; mv new newer
rm common/fifo-l1; mkfifo -m 640 common/fifo-new
"#;

const WORK_AGAIN: &str = r#"
cd "$1"
rm -r moved
mkdir moved; echo other >moved/other
echo back >common/both
rm replaced; mkdir replaced; echo dir >replaced/again
rm -r gone; echo 'a file' >gone
mv newer newest
mv common/renamed emptied/
echo 2 >>common/hard
rm -r only-l2/deep
mkdir only-l2/deep
"#;

/// Mounts at `m`, runs a script there, then looks: in one go, since a namespace's mounts end with it.
type Mounter = fn(&Bench, &str, &str) -> String;

fn ours(bench: &Bench, options: &str, script: &str) -> String {
    bench.mounted(options, |_| bench.shell(&Bench::with_look(script)))
}

fn kernel(bench: &Bench, options: &str, script: &str) -> String {
    let script = format!("mount -t overlay -o userxattr,{options} overlay m\n{script}\numount m");
    bench.in_namespace(&Bench::with_look(&script))
}

fn fuse_overlayfs(bench: &Bench, options: &str, script: &str) -> String {
    let script = format!("fuse-overlayfs -o {options} m 2>/dev/null\n{script}\numount m");
    bench.in_namespace(&Bench::with_look(&script))
}

/// A script that does `work` in `m` and then looks.
fn working(work: &str, look: &str) -> String {
    format!("work() {{ (\n{work}\n) }}\nwork m\n{look} m")
}

fn plain() {
    let bench = Bench::new();
    bench.shell(SETUP);
    // cp makes the merged tree of it: the lower layer first, the upper one over it.
    bench.shell("mkdir copy; cp -a l2/. copy; cp -a l1/. copy");
    let script = format!(
        "work() {{ (\n{WORK}\n) }}\nagain() {{ (\n{WORK_AGAIN}\n) }}\nwork copy; again copy\nlook_timeless copy"
    );
    let want = bench.shell(&Bench::with_look(&script));
    ours(&bench, UP, &working(WORK, "look"));
    let have = ours(&bench, UP, &working(WORK_AGAIN, "look_timeless"));
    same("against a plain copy", &want, &have);
}

/// One program writes an upper, the other mounts it, sees the same, goes on; the first one then sees that.
fn exchange(first: Mounter, second: Mounter) {
    let bench = Bench::new();
    bench.shell(SETUP);
    first(&bench, UP, &working(WORK, "true"));
    // Another mount to look: fuse-overlayfs shows times that it has not written yet.
    let written = first(&bench, UP, "look m");
    same("what the second one sees", &written, &second(&bench, UP, "look m"));
    second(&bench, UP, &working(WORK_AGAIN, "true"));
    let again = second(&bench, UP, "look m");
    same("what the first one sees after the second went on", &again, &first(&bench, UP, "look m"));
}

/// An upper becomes a layer below.
fn as_lower(first: Mounter, second: Mounter) {
    let bench = Bench::new();
    bench.shell(SETUP);
    first(&bench, UP, &working(WORK, "true"));
    first(&bench, UP, &working(WORK_AGAIN, "true"));
    let written = first(&bench, UP, "look m");
    bench.shell("mv u l0; mkdir u");
    let below = "lowerdir=l0:l1:l2,upperdir=u,workdir=w";
    same("what shows through", &written, &second(&bench, below, "look m"));
    bench.shell("chmod -R u+rwX w; rm -rf w; mkdir w");
    second(&bench, below, "rm -r m/common m/gone; mkdir m/common; echo 1 >m/common/1");
    let left = second(&bench, below, "look m");
    same("after it was changed", &left, &first(&bench, below, "look m"));
}
