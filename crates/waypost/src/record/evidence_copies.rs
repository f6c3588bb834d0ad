//! Copies of the evidence of earlier records of a scope: a resume reads one record instead of hundreds.
//!
//! ```text
//!   seq   1 2 3 .. 256 | 257 (copies of 1 to 256) 258 .. 512 | 513 (copies of 257 to 512) 514 515
//!   read                 257                                    513                       514 515
//! ```
//!
//! A record never changes, so its copy holds after a rollback and in any position. Only pins of files with a stamp are
//! copied; `others` names the records with other evidence, and a reader reads these records. The digest of a record
//! covers the copies in its header.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::evidence::{ACCEPTED_LABEL, Claim, Pack, Terms, Verdict};
use super::header::Header;

/// Pins in a record with copies: some 45 KB. Less would be more records to read, more would be a longer tail without
/// copies.
const PINS: usize = 256;
/// Most pins of one end to copy: with paths of any length, a header stays far below its limit.
const PINS_OF_END_MAX: usize = 32;
/// Most bytes of paths before the copies are written.
const PATH_BYTES_MAX: usize = 64 << 10;
/// Most records without copies in the range of the copies.
const OTHERS_MAX: usize = 256;

/// Copies of the evidence of the records `from` to `to` of the same scope.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvidenceCopies {
    /// The first record.
    pub from: u64,
    /// The last record. A record in the range without copied pins has no evidence, unless it is one of `others`.
    pub to: u64,
    /// The kind of the claims.
    pub kind: String,
    /// The machine of the claims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The pins, in the order of the records and claims.
    pub pins: Vec<PinCopy>,
    /// The records with other evidence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<u64>,
}

/// A copy of a claim: the pin of a file with a stamp, `ok` at the commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PinCopy {
    /// The record of the claim.
    pub seq: u64,
    /// The subject.
    pub file: String,
    /// The pinned digest.
    pub digest: String,
    /// The stamp of the file.
    pub stamp: String,
}

impl PinCopy {
    /// Copies the parts of a claim that differ from claim to claim.
    fn of(seq: u64, claim: &Claim) -> Option<Self> {
        let (digest, stamp) = (claim.expect.as_str()?.to_owned(), claim.stamp.clone()?);
        Some(Self { seq, file: claim.subject.clone(), digest, stamp })
    }
}

impl EvidenceCopies {
    /// Begins with the record `from`; there are no copies yet.
    pub(crate) fn from(from: u64) -> Self {
        Self { from, to: from.saturating_sub(1), ..Self::default() }
    }

    /// Adds the next record of the scope. Begins again after a record with copies.
    pub(crate) fn note(&mut self, header: &Header) {
        let is_next = header.seq == self.to + 1;
        if header.copies.is_some() || self.others.len() >= OTHERS_MAX || !is_next {
            *self = Self::from(header.seq);
        }
        self.to = header.seq;
        let Some(pack) = &header.evidence else { return };
        let (key, value) = ACCEPTED_LABEL;
        let is_accepted = header.labels.get(key).is_some_and(|label| label == value);
        match self.pins_of(header.seq, pack).filter(|_| !is_accepted) {
            Some(pins) => self.pins.extend(pins),
            None => self.others.push(header.seq),
        }
    }

    /// Returns copies of all claims of a pack; `None` if a copy would lose more than the time of the check.
    fn pins_of(&mut self, seq: u64, pack: &Pack) -> Option<Vec<PinCopy>> {
        let first = pack.claims.first().filter(|_| pack.claims.len() <= PINS_OF_END_MAX)?;
        if self.pins.is_empty() {
            (self.kind, self.host) = (first.kind.clone(), first.host.clone());
        }
        let copy = |claim: &Claim| {
            let copy = PinCopy::of(seq, claim)?;
            let is_same = self.claim(copy.clone()) == Claim { checked_at: None, ..claim.clone() };
            is_same.then_some(copy)
        };
        pack.claims.iter().map(copy).collect::<Option<_>>().filter(|_| pack.at_least.is_none())
    }

    /// Returns the copied claim, without the time of its check.
    fn claim(&self, pin: PinCopy) -> Claim {
        let found = Value::String(pin.digest.clone());
        Claim {
            kind: self.kind.clone(),
            subject: pin.file,
            name: None,
            expect: Value::String(pin.digest),
            pinned: true,
            live: false,
            host: self.host.clone(),
            file: None,
            stamp: Some(pin.stamp),
            terms: Terms { fast: true, ..Terms::default() },
            verdict: Verdict::Ok,
            found,
            error: None,
            checked_at: None,
        }
    }

    /// Returns whether the copies are enough for a record.
    pub(crate) fn is_full(&self) -> bool {
        let path_bytes = || self.pins.iter().map(|pin| pin.file.len()).sum::<usize>();
        self.pins.len() >= PINS || (self.pins.len() >= PINS_OF_END_MAX && path_bytes() >= PATH_BYTES_MAX)
    }

    /// Returns the copied evidence, by record.
    pub(crate) fn packs(&self) -> impl Iterator<Item = (u64, Pack)> {
        self.pins.chunk_by(|pin, next| pin.seq == next.seq).map(|pins| {
            let claims = pins.iter().map(|pin| self.claim(pin.clone())).collect();
            (pins[0].seq, Pack { at_least: None, claims })
        })
    }

    /// Returns whether the evidence of a record is known without the record.
    pub(crate) fn covers(&self, seq: u64) -> bool {
        (self.from..=self.to).contains(&seq) && !self.others.contains(&seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pin(file: &str) -> Claim {
        let copies = EvidenceCopies { kind: "file_sha256".into(), ..EvidenceCopies::default() };
        copies.claim(PinCopy { seq: 1, file: file.into(), digest: "d".into(), stamp: "s".into() })
    }

    fn end(seq: u64, claims: Vec<Claim>) -> Header {
        let header = serde_json::json!({
            "v": 3, "run": "r", "scope": "main", "seq": seq, "reason": "step", "phase": "started",
            "evidence": { "claims": claims }, "token": 1, "created_at": "2026-11-30T00:00:00Z",
        });
        serde_json::from_value(header).unwrap()
    }

    fn noted(headers: &[Header]) -> EvidenceCopies {
        let mut copies = EvidenceCopies::from(1);
        headers.iter().for_each(|header| copies.note(header));
        copies
    }

    #[test]
    fn copies_are_the_claims_without_the_time_of_the_check() {
        let checked = Claim { checked_at: Some(jiff::Timestamp::UNIX_EPOCH), ..pin("b") };

        let copies = noted(&[end(1, vec![pin("a"), checked]), end(2, vec![]), end(3, vec![pin("c")])]);

        let packs: Vec<_> = copies.packs().map(|(seq, pack)| (seq, pack.claims)).collect();
        assert_eq!(packs, [(1, vec![pin("a"), pin("b")]), (3, vec![pin("c")])]);
        assert_eq!((copies.from, copies.to, copies.others.as_slice()), (1, 3, &[2][..]));
        assert_eq!([1, 2, 3, 4].map(|seq| copies.covers(seq)), [true, false, true, false]);
    }

    #[test]
    fn other_evidence_stays_in_its_record() {
        let fail = |claim: Claim| vec![pin("b"), claim];
        let others = [
            Claim { verdict: Verdict::Failed, ..pin("a") },
            Claim { name: Some("n".into()), ..pin("a") },
            Claim { stamp: None, ..pin("a") },
            Claim { file: Some("f".into()), ..pin("a") },
            Claim { host: Some("h".into()), ..pin("a") },
            Claim { kind: "other".into(), ..pin("a") },
            Claim { terms: Terms::default(), ..pin("a") },
            Claim { found: Value::Null, ..pin("a") },
        ];
        let mut accepted = end(10, vec![pin("a")]);
        accepted.labels.insert(ACCEPTED_LABEL.0.into(), ACCEPTED_LABEL.1.into());
        let ends = (2..).zip(others.map(fail)).map(|(seq, claims)| end(seq, claims));
        let headers: Vec<Header> =
            [end(1, vec![pin("a")])].into_iter().chain(ends).chain([accepted]).collect();

        let copies = noted(&headers);

        assert_eq!((copies.pins.len(), copies.others), (1, (2..=10).collect()));
    }

    #[test]
    fn a_record_with_copies_and_a_gap_begin_again() {
        let mut first = end(2, vec![pin("b")]);
        first.copies = Some(Box::default());

        let copies = noted(&[end(1, vec![pin("a")]), first]);
        assert_eq!((copies.from, copies.to, copies.pins.len()), (2, 2, 1));
        let copies = noted(&[end(1, vec![pin("a")]), end(5, vec![pin("b")])]);
        assert_eq!((copies.from, copies.to, copies.pins.len()), (5, 5, 1));
    }
}
