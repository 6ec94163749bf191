//! What was acknowledged at which offsets, in little memory, to be held against what can be read.
//!
//! What holds: offsets rise. Neighbours share a block with a digest of all their values, so a difference is found to within a
//! block. An offset that was never acknowledged (its batch's outcome stayed unknown) may be read; it is no fault.

use std::hash::{DefaultHasher, Hasher as _};

use highwater_types::Offset;

/// How many records share a block.
const BLOCK_RECORDS: i64 = 4096;

/// What was acknowledged in one partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ledger {
    blocks: Vec<Block>,
}

/// Neighbouring offsets.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Block {
    first: Offset,
    /// The offset after the last.
    next: Offset,
    digest: u64,
}

/// The digest of one value.
pub(crate) fn digest(value: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(value);
    hasher.finish()
}

/// The digest of values in their order, with one more.
fn chain(before: u64, digest: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write_u64(before);
    hasher.write_u64(digest);
    hasher.finish()
}

impl Ledger {
    /// Notes that the record at `offset` is acknowledged. An offset that is not above the last one is left out: only a
    /// leader that gives an offset twice could cause that, and then the reading shows a difference.
    pub(crate) fn add(&mut self, offset: Offset, digest: u64) {
        match self.blocks.last_mut() {
            Some(block) if block.next == offset && offset.get() - block.first.get() < BLOCK_RECORDS => {
                block.next = offset.next();
                block.digest = chain(block.digest, digest);
            }
            Some(block) if block.next > offset => block.digest = chain(block.digest, digest),
            _ => self.blocks.push(Block { first: offset, next: offset.next(), digest: chain(0, digest) }),
        }
    }

    /// How many records are acknowledged.
    pub(crate) fn records(&self) -> u64 {
        self.blocks.iter().map(|block| block.next.since(block.first)).sum()
    }

    /// The last acknowledged offset; `None` without any.
    pub(crate) fn last(&self) -> Option<Offset> {
        self.blocks.last().and_then(|block| block.next.prev())
    }

    /// Starts to hold what is read against it.
    pub(crate) fn audit(&self) -> Audit<'_> {
        Audit {
            blocks: &self.blocks,
            expected: Offset::ZERO,
            digest: 0,
            has_gap: false,
            faults: Vec::new(),
            extra: 0,
        }
    }
}

/// Holds the records that are read against the acknowledged ones.
#[derive(Debug)]
pub(crate) struct Audit<'a> {
    /// The blocks that are not read to their end.
    blocks: &'a [Block],
    /// The next offset to come, unless the first block begins above it.
    expected: Offset,
    /// Of what was read of the first block.
    digest: u64,
    /// Whether something of the first block is missing, and told.
    has_gap: bool,
    faults: Vec<String>,
    extra: u64,
}

/// What the reading showed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Audited {
    /// What is missing or different, the first few; empty: every acknowledged record was read as it was sent.
    pub(crate) faults: Vec<String>,
    /// Records that were read and never acknowledged.
    pub(crate) extra: u64,
}

/// How many faults are told.
const FAULTS_KEPT: usize = 5;

impl<'a> Audit<'a> {
    /// Takes the next record that was read; offsets rise.
    pub(crate) fn read(&mut self, offset: Offset, digest: u64) {
        while let Some((block, rest)) = self.blocks.split_first()
            && block.next <= offset
        {
            self.close(block, rest);
        }
        let Some(block) = self.blocks.first().filter(|block| block.first <= offset) else {
            self.extra = self.extra.saturating_add(1);
            return;
        };
        let expected = self.expected.max(block.first);
        if expected < offset {
            self.has_gap = true;
            self.fault(format!("offsets [{expected}, {offset}) are missing"));
        }
        self.expected = offset.next();
        self.digest = chain(self.digest, digest);
    }

    /// Says what the reading showed; what was not read is missing.
    pub(crate) fn finish(mut self) -> Audited {
        while let Some((block, rest)) = self.blocks.split_first() {
            self.close(block, rest);
        }
        Audited { faults: self.faults, extra: self.extra }
    }

    /// Judges the first block, and goes on with the rest.
    fn close(&mut self, block: &Block, rest: &'a [Block]) {
        let expected = self.expected.max(block.first);
        if expected < block.next {
            self.fault(format!("offsets [{expected}, {}) are missing", block.next));
        } else if self.digest != block.digest && !self.has_gap {
            self.fault(format!("offsets [{}, {}) do not hold what was sent", block.first, block.next));
        }
        (self.blocks, self.digest, self.has_gap) = (rest, 0, false);
    }

    fn fault(&mut self, fault: String) {
        if self.faults.len() < FAULTS_KEPT {
            self.faults.push(fault);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offset(raw: i64) -> Offset {
        Offset::new(raw).unwrap()
    }

    fn value(offset: i64) -> u64 {
        digest(format!("value {offset}").as_bytes())
    }

    fn ledger(offsets: impl IntoIterator<Item = i64>) -> Ledger {
        let mut ledger = Ledger::default();
        offsets.into_iter().for_each(|raw| ledger.add(offset(raw), value(raw)));
        ledger
    }

    fn audit(ledger: &Ledger, read: impl IntoIterator<Item = i64>) -> Audited {
        let mut audit = ledger.audit();
        read.into_iter().for_each(|raw| audit.read(offset(raw), value(raw)));
        audit.finish()
    }

    #[test]
    fn what_is_read_as_it_was_sent_has_no_faults() {
        let sent = || (5..10_000).chain(10_010..10_020).chain([20_000]);
        let ledger = ledger(sent());
        assert_eq!((ledger.records(), ledger.last()), (10_006, Some(offset(20_000))));
        assert_eq!(audit(&ledger, sent()), Audited::default());
        let with_more = audit(&ledger, 0..30_000);
        assert_eq!(with_more, Audited { faults: vec![], extra: 30_000 - 10_006 });
    }

    #[test]
    fn what_is_missing_is_named() {
        let ledger = ledger((0..10).chain(20..30));
        let faults = |read: Vec<i64>| audit(&ledger, read).faults;
        assert_eq!(faults((1..10).chain(20..30).collect()), ["offsets [0, 1) are missing"]);
        assert_eq!(faults((0..4).chain(6..10).chain(20..30).collect()), ["offsets [4, 6) are missing"]);
        assert_eq!(faults((0..10).chain(20..29).collect()), ["offsets [29, 30) are missing"]);
        assert_eq!(faults((0..10).collect()), ["offsets [20, 30) are missing"]);
        assert_eq!(faults(vec![]), ["offsets [0, 10) are missing", "offsets [20, 30) are missing"]);
        assert_eq!(faults((0..9).collect()), ["offsets [9, 10) are missing", "offsets [20, 30) are missing"]);
    }

    #[test]
    fn a_value_that_is_not_the_one_that_was_sent_is_found_to_within_a_block() {
        let ledger = ledger(0..3 * BLOCK_RECORDS);
        let mut audit = ledger.audit();
        (0..3 * BLOCK_RECORDS).for_each(|raw| audit.read(offset(raw), value(raw.min(5000))));
        let faults = audit.finish().faults;
        assert_eq!(
            faults,
            [
                "offsets [4096, 8192) do not hold what was sent",
                "offsets [8192, 12288) do not hold what was sent"
            ]
        );
        let mut swapped = ledger.audit();
        (0..3 * BLOCK_RECORDS)
            .for_each(|raw| swapped.read(offset(raw), value(if raw < 2 { 1 - raw } else { raw })));
        assert_eq!(swapped.finish().faults, ["offsets [0, 4096) do not hold what was sent"]);
    }

    #[test]
    fn an_offset_that_was_given_twice_shows_as_a_difference() {
        let mut ledger = ledger(0..5);
        ledger.add(offset(4), value(99));
        assert_eq!(audit(&ledger, 0..5).faults, ["offsets [0, 5) do not hold what was sent"]);
    }

    #[test]
    fn an_empty_ledger_misses_nothing() {
        assert_eq!(audit(&Ledger::default(), 0..3), Audited { faults: vec![], extra: 3 });
    }
}
