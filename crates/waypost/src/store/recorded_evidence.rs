//! Reads the evidence of a scope: from copies near the position, and from the records without copies.
//!
//! Copies are hints: without a sound record of copies, all records are read. A record in the range of copies is not read,
//! so its damage does not hide its evidence.

use std::collections::{BTreeSet, HashMap};

use crate::record::{ACCEPTED_LABEL, EvidenceCopies, Header, Pack, Position};

use super::{Scan, Store, StoreError, StoreExt as _};

/// The evidence of a scope: as recorded by ends, and as accepted by a person. An acceptance concerns external
/// files, which a rollback does not restore: it stays in force together with the original record.
#[derive(Debug, Default)]
pub(crate) struct RecordedEvidence {
    /// The evidence of ends, by the seq of the record.
    pub(crate) made: HashMap<u64, Pack>,
    /// The accepted evidence, by the seq of the original record. It replaces the evidence of the end.
    pub(crate) accepted: HashMap<u64, Pack>,
}

impl RecordedEvidence {
    /// Reads the accepted evidence of the scope of a header, and the evidence of its records `seqs`.
    ///
    /// # Errors
    /// As [`Store::load`], for a missing or damaged record of `seqs`.
    pub(crate) async fn read(
        store: &dyn Store,
        (header, position): (&Header, &Position),
        seqs: &BTreeSet<u64>,
    ) -> Result<Self, StoreError> {
        let copies = copies_of(store, header, position).await?;
        let (mut found, mut gaps, mut next) = (Self::default(), Vec::new(), 1);
        for copies in &copies {
            found.made.extend(copies.packs());
            gaps.extend((next < copies.from).then(|| (next, Some(copies.from - 1))));
            gaps.extend(copies.others.iter().map(|seq| (*seq, Some(*seq))));
            next = copies.to + 1;
        }
        gaps.push((next, None));
        let mut seen = BTreeSet::new();
        for (first, seq_max) in gaps {
            let scope = Some(header.scope.clone());
            let mut scan = Scan { scope, seq_min: Some(first), seq_max, ..Scan::of(&header.run) };
            loop {
                let page = store.scan(&scan).await?;
                seen.extend(page.records.iter().map(|record| record.header().seq));
                page.records.iter().for_each(|record| found.note(record.header(), seqs));
                match page.next {
                    Some(cursor) => scan.cursor = Some(cursor),
                    None => break,
                }
            }
        }
        let is_known = |seq: &u64| seen.contains(seq) || copies.iter().any(|copies| copies.covers(*seq));
        let lost = seqs.iter().copied().filter(|seq| !is_known(seq) && !found.accepted.contains_key(seq));
        for seq in lost.collect::<Vec<_>>() {
            // The load returns the precise error.
            let record = store.load(&header.run, &header.scope, seq).await?;
            found.made.extend(record.header().evidence.clone().map(|pack| (seq, pack)));
        }
        Ok(found)
    }

    /// Notes the evidence of a record. Oldest first: the newest acceptance counts.
    fn note(&mut self, header: &Header, seqs: &BTreeSet<u64>) {
        let Some(pack) = &header.evidence else { return };
        let (key, value) = ACCEPTED_LABEL;
        if header.labels.get(key).is_some_and(|label| label == value) {
            self.accepted.extend(header.about.map(|about| (about, pack.clone())));
        }
        if seqs.contains(&header.seq) {
            self.made.insert(header.seq, pack.clone());
        }
    }
}

/// Reads the copies of evidence near a position, oldest first; none if a record with copies is damaged or missing.
async fn copies_of(
    store: &dyn Store,
    header: &Header,
    position: &Position,
) -> Result<Vec<EvidenceCopies>, StoreError> {
    let seqs = position.copies.iter().copied().collect();
    let records = match store.records(&header.run, &header.scope, &seqs).await {
        Err(StoreError::Damaged { .. } | StoreError::NotFound { .. }) => return Ok(Vec::new()),
        records => records?,
    };
    Ok(records.values().filter_map(|record| record.header().copies.as_deref().cloned()).collect())
}
