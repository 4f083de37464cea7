//! `sbx-fuse usage`: where the space is.

use super::amounts::bytes;
use super::output::{Color, Out};
use super::state::{State, Told};
use crate::base::Result;
use crate::session::{Session, Store, Usage};
use clap::Args;
use serde::Serialize;

/// Show where the space is, by session
///
/// In bytes on disk, as `du` counts them: files with several names once, holes not at all.
#[derive(Debug, Args)]
pub(super) struct UsageArgs {
    /// Print a JSON object, in bytes
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    name: String,
    state: State,
    #[serde(flatten)]
    usage: Usage,
    total: u64,
}

#[derive(Serialize)]
struct Json {
    sessions: Vec<Row>,
    /// Archives that belong to no session here.
    strays: u64,
    /// What crashes left behind.
    leftovers: u64,
    total: u64,
}

pub(super) fn run(args: UsageArgs) -> Result<u8> {
    let store = Store::open()?;
    let all = store.usage()?;
    let strays = store.strays(all.iter().filter_map(|(_, s, _)| s.as_ref().ok()))?;
    let strays = strays.iter().map(|s| s.bytes).sum();
    let leftovers = store.leftovers()?.iter().map(|l| l.bytes).sum();
    let row = |(name, session, usage): (String, Result<Session>, Usage)| {
        let state = session.and_then(|s| Told::of(&s)).map_or(State::Broken, |told| told.state);
        Row { name, state, total: usage.total(), usage }
    };
    let sessions: Vec<Row> = all.into_iter().map(row).collect();
    let total = sessions.iter().map(|r| r.total).sum::<u64>() + strays + leftovers;
    let json = Json { sessions, strays, leftovers, total };
    let mut out = Out::new();
    if args.json {
        out.json(&json)?;
    } else {
        table(&mut out, &json)?;
    }
    out.flush()?;
    Ok(0)
}

fn table(out: &mut Out, json: &Json) -> Result<()> {
    const HEADS: [&str; 9] =
        ["session", "state", "upper", "layers", "journal", "bases", "originals", "archive", "total"];
    let line = |name: &str, state: &str, u: &Usage| -> Vec<String> {
        let numbers = [u.upper, u.layers, u.journal, u.bases, u.originals, u.archive, u.total()];
        let shown = numbers.iter().map(|&n| if n == 0 { "-".into() } else { bytes(n) });
        [name.to_owned(), state.to_owned()].into_iter().chain(shown).collect()
    };
    let mut rows = vec![HEADS.map(str::to_owned).to_vec()];
    let mut sum = Usage::default();
    for row in &json.sessions {
        sum.add(&row.usage);
        rows.push(line(&row.name, row.state.word(), &row.usage));
    }
    for (what, n) in [("(other archives)", json.strays), ("(left by crashes)", json.leftovers)] {
        if n > 0 {
            let mut row = line(what, "", &Usage::default());
            row[8] = bytes(n);
            rows.push(row);
        }
    }
    let mut last = line("total", "", &sum);
    last[8] = bytes(json.total);
    rows.push(last);
    // A column that nobody uses would only be in the way.
    let used: Vec<usize> =
        (0..9).filter(|&c| ![3, 6].contains(&c) || rows[1..].iter().any(|r| r[c] != "-")).collect();
    let widths: Vec<usize> =
        used.iter().map(|&c| rows.iter().map(|r| r[c].chars().count()).max().unwrap_or(0)).collect();
    for (i, row) in rows.iter().enumerate() {
        let cells = used
            .iter()
            .zip(&widths)
            .map(|(&c, &w)| if c < 2 { format!("{:w$}", row[c]) } else { format!("{:>w$}", row[c]) });
        let text = cells.collect::<Vec<_>>().join("  ");
        let strong = i == 0 || i + 1 == rows.len();
        out.line(&if strong { out.paint(Color::Bold, &text) } else { text })?;
    }
    Ok(())
}
