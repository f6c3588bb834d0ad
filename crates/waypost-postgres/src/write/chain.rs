//! The expected ends of the scopes of a batch.

use std::collections::HashMap;

use waypost::id::{Digest, RunId, ScopePath};
use waypost::record::{Reason, Record};
use waypost::store::StoreError;
use waypost_codec::encode::Encoded;

use crate::database::connect::Database;
use crate::database::error::Failure;
use crate::database::statement::Statement;
use crate::database::values::count;
use crate::tables::rows::{Found, fetch};
use crate::tables::scopes;

/// A scope with the additions of a batch.
#[derive(Debug)]
pub(crate) struct Chain {
    pub(crate) path: ScopePath,
    /// The scope has no row yet.
    pub(crate) is_new: bool,
    /// The expected end in the row: newest seq, and the digest of the newest record unless lost.
    pub(crate) head: u64,
    pub(crate) tip: Option<Digest>,
    /// The end after the batch.
    pub(crate) newest: u64,
    pub(crate) open: bool,
    pub(crate) bodies: u64,
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    /// Seq and digest of the last record.
    last: Option<(u64, Digest)>,
}

impl Chain {
    fn new(path: &ScopePath, is_new: bool, head: u64, tip: Option<Digest>) -> Self {
        let last = tip.map(|digest| (head, digest));
        let (newest, bodies, records, bytes) = (head, 0, 0, 0);
        Self { path: path.clone(), is_new, head, tip, newest, open: true, bodies, records, bytes, last }
    }

    /// Returns a main scope without records.
    pub(crate) fn empty_main() -> Self {
        Self::new(&ScopePath::main(), true, 0, None)
    }

    /// Returns the digest for the row after the batch: of the newest record, unless lost.
    pub(crate) fn tip_after(&self) -> Option<Digest> {
        self.last.filter(|(seq, _)| *seq == self.newest).map(|(_, digest)| digest)
    }

    fn add(&mut self, record: &Record) -> Result<(), StoreError> {
        let header = record.header();
        let next = self.newest + 1;
        let is_repair = header.reason == Reason::Repair && self.records == 0;
        if !is_repair {
            if header.seq != next {
                return Err(conflict(record, format!("the next record is {next}")));
            }
            let digest = self.last.filter(|(seq, _)| *seq == self.newest).map(|(_, digest)| digest);
            if header.prev != digest {
                return Err(conflict(record, mismatch(header.prev, digest)));
            }
        }
        self.newest = self.newest.max(header.seq);
        self.last = Some((header.seq, record.digest()));
        self.open = header.end.is_none();
        self.bodies += u64::from(header.body.is_some());
        self.records += 1;
        Ok(())
    }
}

/// Returns the scopes of a batch in the order of their first record.
///
/// A record names the continued end, so no scope is read before: the statement compares. Only a repair reads the
/// scope.
///
/// # Errors
/// [`StoreError::Conflict`]: the records do not fit each other.
pub(crate) async fn chains(
    database: &Database,
    run: &RunId,
    records: &[Record],
) -> Result<Vec<Chain>, Failure> {
    let mut order: Vec<Chain> = Vec::new();
    let mut places: HashMap<&ScopePath, usize> = HashMap::new();
    for record in records {
        let header = record.header();
        let place = match places.get(&header.scope) {
            Some(place) => *place,
            None => {
                let chain = match header.reason {
                    Reason::Repair => of_repair(database, run, record).await?,
                    _ => of_first(record)?,
                };
                order.push(chain);
                places.insert(&header.scope, order.len() - 1);
                order.len() - 1
            }
        };
        order[place].add(record)?;
    }
    Ok(order)
}

/// Returns the scopes of the first batch of a run.
///
/// # Errors
/// [`StoreError::Conflict`]: the records do not fit each other.
pub(crate) fn of_new_run(records: &[Record]) -> Result<Vec<Chain>, StoreError> {
    let mut order: Vec<Chain> = Vec::new();
    let mut places: HashMap<&ScopePath, usize> = HashMap::new();
    for record in records {
        let header = record.header();
        let place = *places.entry(&header.scope).or_insert_with(|| {
            order.push(Chain::new(&header.scope, true, 0, None));
            order.len() - 1
        });
        order[place].add(record)?;
    }
    Ok(order)
}

/// Adds the stored sizes.
pub(crate) fn add_sizes(chains: &mut [Chain], records: &[Record], encoded: &[Encoded]) {
    let mut sizes: HashMap<&ScopePath, u64> = HashMap::new();
    for (record, encoded) in records.iter().zip(encoded) {
        let plain = record.body_bytes().map(|body| body.as_slice());
        let body = encoded.body.columns(plain).1.map_or(0, <[u8]>::len);
        *sizes.entry(&record.header().scope).or_default() += (encoded.header.len() + body) as u64;
    }
    for chain in chains {
        chain.bytes = sizes.get(&chain.path).copied().unwrap_or_default();
    }
}

/// Returns the end before the first record of a scope in a batch.
fn of_first(record: &Record) -> Result<Chain, StoreError> {
    let header = record.header();
    match (header.seq, header.prev) {
        // The main scope has a row from the creation of the run on.
        (1, None) => Ok(Chain::new(&header.scope, !header.scope.is_main(), 0, None)),
        (0 | 1, _) => Err(conflict(record, "a scope begins with 1, without `prev`".to_owned())),
        (seq, Some(prev)) => Ok(Chain::new(&header.scope, false, seq - 1, Some(prev))),
        (_, None) => Err(conflict(record, "the record lacks `prev`".to_owned())),
    }
}

/// Checks a repair, which follows a sound record, down to the newest body, past all damage.
async fn of_repair(database: &Database, run: &RunId, record: &Record) -> Result<Chain, Failure> {
    const END: &str =
        "SELECT s.tip, (SELECT coalesce(max(r.seq), 0) FROM waypost.records r WHERE r.scope = s.id)
        FROM waypost.scopes s WHERE s.id = $1";
    let header = record.header();
    let Some(scope) = scopes::find(database, run, &header.scope).await? else {
        return of_first(record).map_err(Failure::from);
    };
    let answer = database.run(&Statement::new(END).int(scope.id)).await?;
    let row = answer.row()?;
    let tip = digest_of(row.get(0));
    let last = count(row.get(1));
    if header.seq <= last || header.seq > scope.newest + 1 {
        let (next, newest) = (scope.newest + 1, scope.newest);
        let why = format!("the next record is {next}; {last} of {newest} records are there");
        return Err(conflict(record, why).into());
    }
    let mut sound = Vec::new();
    for seq in (1..header.seq).rev() {
        if let Found::Sound(found) = fetch(database, run, &scope, seq).await? {
            sound.push(found.digest());
            if found.body_bytes().is_some() {
                break;
            }
        }
    }
    let fits = header.prev.map_or(sound.is_empty(), |prev| sound.contains(&prev));
    match fits {
        true => Ok(Chain::new(&header.scope, false, scope.newest, tip)),
        false => Err(conflict(record, mismatch(header.prev, sound.first().copied())).into()),
    }
}

/// Returns the digest in a column; `None` for another length.
pub(crate) fn digest_of(column: Option<&[u8]>) -> Option<Digest> {
    column.and_then(|column| column.try_into().ok()).map(Digest::from_bytes)
}

/// Returns the error for a record at the wrong place.
pub(crate) fn conflict(record: &Record, why: String) -> StoreError {
    let header = record.header();
    let (run, scope, seq) = (header.run.clone(), header.scope.clone(), header.seq);
    StoreError::Conflict { run, scope, seq, why }
}

pub(crate) fn mismatch(found: Option<Digest>, expect: Option<Digest>) -> String {
    let text = |digest: Option<Digest>| digest.map_or_else(|| "none".to_owned(), |digest| digest.to_string());
    format!("`prev` is {}, but the record before has digest {}", text(found), text(expect))
}
