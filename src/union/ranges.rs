//! A set of byte offsets, kept as ranges that do not touch.

use std::collections::BTreeMap;

/// Offsets, as start and end of each range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds `start..end`.
    pub fn insert(&mut self, mut start: u64, mut end: u64) {
        if start >= end {
            return;
        }
        if let Some((&before, &stop)) = self.0.range(..=start).next_back()
            && stop >= start
        {
            if stop >= end {
                return;
            }
            start = before;
        }
        while let Some((&next, &stop)) = self.0.range(start..=end).next() {
            self.0.remove(&next);
            end = end.max(stop);
        }
        self.0.insert(start, end);
    }

    /// The first range of offsets within `start..end` that are not in the set.
    pub fn gap(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        let from = match self.0.range(..=start).next_back() {
            Some((_, &stop)) if stop > start => stop,
            _ => start,
        };
        if from >= end {
            return None;
        }
        let to = self.0.range(from..end).next().map_or(end, |(&next, _)| next);
        Some((from, to))
    }

    /// How many offsets of `0..end` are not in the set.
    pub fn missing(&self, end: u64) -> u64 {
        let held = self.0.range(..end).map(|(start, stop)| stop.min(&end) - start);
        end - held.sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_the_set_that_was_put_in(
            puts in prop::collection::vec((0u64..60, 0u64..12), 0..20), (start, len) in (0u64..60, 0u64..30),
        ) {
            let (mut ranges, mut plain) = (Ranges::default(), [false; 100]);
            for (at, len) in puts {
                ranges.insert(at, at + len);
                plain[at as usize..(at + len) as usize].fill(true);
            }
            let touching = ranges.0.iter().zip(ranges.0.iter().skip(1)).any(|(a, b)| a.1 >= b.0);
            prop_assert!(!touching, "{ranges:?}");
            let end = start + len;
            let out = |at: &u64| !plain[*at as usize];
            let gap = (start..end).find(out);
            let gap = gap.map(|from| (from, (from..end).find(|at| !out(at)).unwrap_or(end)));
            prop_assert_eq!(ranges.gap(start, end), gap);
            prop_assert_eq!(ranges.missing(end), (0..end).filter(out).count() as u64);
        }
    }
}
