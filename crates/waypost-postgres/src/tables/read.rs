//! Heads, single records, and pages of records.

use std::collections::{HashMap, HashSet};

use waypost::id::{RunId, ScopePath};
use waypost::record::Record;
use waypost::store::{Damage, Head, Heads, PAGE_ITEMS_MAX, Page, Scan, ScanOrder, Scanned, StoreError};

use crate::database::connect::Database;
use crate::database::error::Failure;
use crate::database::statement::Statement;
use crate::database::values::int;
use crate::tables::rows::{self, Found, fetch};
use crate::tables::scopes::{self, Scope};

/// Bytes of bodies per page of heads: a page has a head at least, and at most a few of the largest.
const PAGE_BODY_BYTES_MAX: usize = 128 << 20;
/// Scopes read per statement.
const SCOPES_AT_ONCE: usize = 256;
/// Records read per statement.
const RECORDS_AT_ONCE: usize = 1_024;
/// Largest seq, as in the SQLite store.
const SEQ_MAX: u64 = (1 << 32) - 1;

/// The start of the next page: scope id and seq.
#[derive(Debug, Clone, Copy)]
struct Cursor {
    scope: i64,
    seq: u64,
}

impl Cursor {
    fn parse(text: Option<&String>) -> Result<Option<Self>, StoreError> {
        let Some(text) = text else { return Ok(None) };
        let parsed = text
            .split_once('.')
            .and_then(|(scope, seq)| Some(Self { scope: scope.parse().ok()?, seq: seq.parse().ok()? }));
        parsed.map(Some).ok_or_else(|| unknown_cursor(text))
    }

    fn text(self) -> String {
        format!("{}.{}", self.scope, self.seq)
    }
}

pub(crate) fn unknown_cursor(text: &str) -> StoreError {
    // A truncated copy suffices for recognition; the text may be arbitrary.
    let text: String = text.chars().take(80).collect();
    StoreError::Invalid(format!("`{text}` is not a cursor of this store"))
}

/// Returns the newest sound record of each open scope.
pub(crate) async fn heads(database: &Database, run: &RunId, page: &Page) -> Result<Heads, Failure> {
    let limit = page.limit.clamp(1, PAGE_ITEMS_MAX);
    let cursor = Cursor::parse(page.cursor.as_ref())?;
    let id = scopes::run_id(database, run).await?;
    let mut from = cursor.map_or(0, |cursor| cursor.scope);
    let mut heads: Vec<Head> = Vec::new();
    let mut body_bytes = 0;
    loop {
        let scopes = scopes::list(database, id, from, SCOPES_AT_ONCE).await?;
        let Some(last) = scopes.last() else { return Ok(Heads { heads, next: None }) };
        from = last.id + 1;
        let ended = ended(database, run, &scopes).await?;
        for scope in scopes.iter().filter(|scope| !ended.contains(&scope.id)) {
            if heads.len() == limit || body_bytes > PAGE_BODY_BYTES_MAX {
                return Ok(Heads { heads, next: Some(Cursor { scope: scope.id, seq: 0 }.text()) });
            }
            if let Some(head) = head(database, run, scope).await? {
                body_bytes += head.record.body_bytes().map_or(0, |body| body.len());
                heads.push(head);
            }
        }
    }
}

/// Returns the ended scopes with a sound newest record. For the main scope, the body must be sound too, as the
/// result of the run. Joins read the bodies of other scopes.
async fn ended(database: &Database, run: &RunId, scopes: &[Scope]) -> Result<HashSet<i64>, Failure> {
    const NEWEST: &str = "SELECT s.id, r.codec, r.digest, r.header, r.body IS NOT NULL FROM waypost.scopes s
        JOIN waypost.records r ON r.scope = s.id AND r.seq = s.newest WHERE s.id = ANY($1)";
    let closed: HashMap<i64, &Scope> =
        scopes.iter().filter(|scope| !scope.open).map(|scope| (scope.id, scope)).collect();
    if closed.is_empty() {
        return Ok(HashSet::new());
    }
    let newest = Statement::new(NEWEST).ints(closed.keys().map(|id| Some(*id)).collect());
    let mut ended = HashSet::new();
    for row in database.run(&newest).await?.rows {
        let scope = closed[&row.get::<_, i64>(0)];
        let found = match scope.path.is_main() {
            true => fetch(database, run, scope, scope.newest).await?,
            false => rows::open_header(database, run, scope, scope.newest, (&row, 1))?,
        };
        if matches!(found, Found::Sound(record) if record.header().end.is_some()) {
            ended.insert(scope.id);
        }
    }
    Ok(ended)
}

/// Returns the head of a scope; `None` if the scope has ended.
async fn head(database: &Database, run: &RunId, scope: &Scope) -> Result<Option<Head>, Failure> {
    let mut damaged: Vec<Damage> = Vec::new();
    for seq in (1..=scope.newest).rev() {
        match fetch(database, run, scope, seq).await? {
            Found::Sound(record) if record.body_bytes().is_some() => {
                let head = Head { record: *record, next: scope.newest + 1, damaged };
                return Ok(Some(head).filter(|head| head.record.header().end.is_none()));
            }
            Found::Sound(_) | Found::Absent => {}
            Found::Damaged(damage) => damaged.push(*damage),
        }
    }
    Err(match damaged.is_empty() {
        true => StoreError::no_scope(run, &scope.path),
        false => StoreError::of_damage(damaged.swap_remove(0), None),
    }
    .into())
}

/// Returns a verified record.
pub(crate) async fn load(
    database: &Database,
    run: &RunId,
    path: &ScopePath,
    seq: u64,
) -> Result<Record, Failure> {
    let scope = scopes::find(database, run, path).await?;
    let scope = scope.ok_or_else(|| StoreError::no_scope(run, path))?;
    let found = match seq {
        1.. if seq <= scope.newest => fetch(database, run, &scope, seq).await?,
        _ => Found::Absent,
    };
    match found {
        Found::Sound(record) => Ok(*record),
        Found::Absent => Err(StoreError::no_record(run, path, seq).into()),
        Found::Damaged(damage) => {
            let older = newest_sound_below(database, run, &scope, seq).await?;
            Err(StoreError::of_damage(*damage, older).into())
        }
    }
}

async fn newest_sound_below(
    database: &Database,
    run: &RunId,
    scope: &Scope,
    seq: u64,
) -> Result<Option<u64>, Failure> {
    for older in (1..seq).rev() {
        if let Found::Sound(_) = fetch(database, run, scope, older).await? {
            return Ok(Some(older));
        }
    }
    Ok(None)
}

/// Returns a page of headers.
pub(crate) async fn scan(database: &Database, scan: &Scan) -> Result<Scanned, Failure> {
    let cursor = Cursor::parse(scan.cursor.as_ref())?;
    let mut page = ScanPage {
        database,
        scan,
        cursor,
        limit: scan.limit.clamp(1, PAGE_ITEMS_MAX),
        found: Scanned { records: Vec::new(), damaged: Vec::new(), next: None },
    };
    if let Some(path) = &scan.scope {
        if let Some(scope) = scopes::find(database, &scan.run, path).await? {
            page.add(vec![scope]).await?;
        }
        return Ok(page.found);
    }
    let id = scopes::run_id(database, &scan.run).await?;
    let mut from = cursor.map_or(0, |cursor| cursor.scope);
    loop {
        let scopes = scopes::list(database, id, from, SCOPES_AT_ONCE).await?;
        let Some(last) = scopes.last() else { return Ok(page.found) };
        from = last.id + 1;
        page.add(scopes).await?;
        if page.found.next.is_some() {
            return Ok(page.found);
        }
    }
}

/// A page of a scan in the making.
struct ScanPage<'a> {
    database: &'a Database,
    scan: &'a Scan,
    cursor: Option<Cursor>,
    limit: usize,
    found: Scanned,
}

/// The rest of a scope to scan.
struct Range {
    scope: Scope,
    low: u64,
    high: u64,
}

impl Range {
    fn is_empty(&self) -> bool {
        self.low > self.high
    }
}

impl ScanPage<'_> {
    /// Adds the matching records of scopes, in order; sets `next` when the page is full.
    async fn add(&mut self, scopes: Vec<Scope>) -> Result<(), Failure> {
        let scan = self.scan;
        let newest_first = scan.order == ScanOrder::NewestFirst;
        let mut ranges = Vec::with_capacity(scopes.len());
        for scope in scopes {
            let mut low = scan.seq_min.unwrap_or(1).max(1);
            let mut high = scan.seq_max.unwrap_or(SEQ_MAX).min(scope.newest);
            if let Some(cursor) = self.cursor.filter(|cursor| cursor.scope == scope.id) {
                match newest_first {
                    true => high = high.min(cursor.seq),
                    false => low = low.max(cursor.seq),
                }
            }
            ranges.push(Range { scope, low, high });
        }
        ranges.retain(|range| !range.is_empty());
        while !ranges.is_empty() && self.found.next.is_none() {
            self.add_rows(&mut ranges).await?;
            ranges.retain(|range| !range.is_empty());
        }
        Ok(())
    }

    /// Reads the next records of `ranges` with a single statement, and shortens the ranges.
    async fn add_rows(&mut self, ranges: &mut [Range]) -> Result<(), Failure> {
        let (database, scan) = (self.database, self.scan);
        let newest_first = scan.order == ScanOrder::NewestFirst;
        let answer = database.run(&self.statement(ranges)).await?;
        let rows_by_place: HashMap<(i64, u64), usize> = answer
            .rows
            .iter()
            .enumerate()
            .map(|(at, row)| ((row.get(0), row.get::<_, i64>(1) as u64), at))
            .collect();
        let is_cut = answer.rows.len() == RECORDS_AT_ONCE;
        let last = answer.rows.last().map(|row| (row.get::<_, i64>(0), row.get::<_, i64>(1) as u64));
        let has_index = scan.external.is_some() || scan.about.is_some();
        for range in ranges {
            let ends_here = last.filter(|(scope, _)| is_cut && *scope == range.scope.id).map(|(_, seq)| seq);
            let (low, high) = match (ends_here, newest_first) {
                (Some(seq), true) => (seq, range.high),
                (Some(seq), false) => (range.low, seq),
                (None, _) => (range.low, range.high),
            };
            let mut seqs: Vec<u64> = match has_index {
                true => {
                    let of_scope = rows_by_place.keys().filter(|(scope, _)| *scope == range.scope.id);
                    let mut seqs: Vec<u64> = of_scope.map(|(_, seq)| *seq).collect();
                    seqs.sort_unstable();
                    seqs
                }
                false => (low..=high).collect(),
            };
            if newest_first {
                seqs.reverse();
            }
            let mut aside: Option<HashSet<u64>> = None;
            for seq in seqs {
                let found = match rows_by_place.get(&(range.scope.id, seq)) {
                    Some(at) => {
                        rows::open_header(database, &scan.run, &range.scope, seq, (&answer.rows[*at], 2))?
                    }
                    None => {
                        if aside.is_none() {
                            let seqs = rows::quarantined(database, &range.scope, low, high).await?;
                            aside = Some(seqs.into_iter().collect());
                        }
                        match aside.as_ref().is_some_and(|aside| aside.contains(&seq)) {
                            true => Found::Absent,
                            false => {
                                Found::Damaged(Box::new(rows::lost(database, &scan.run, &range.scope, seq)))
                            }
                        }
                    }
                };
                if self.is_full(&found) {
                    self.found.next = Some(Cursor { scope: range.scope.id, seq }.text());
                    return Ok(());
                }
                self.take(found);
            }
            match (ends_here, newest_first) {
                (Some(seq), true) => {
                    range.high = seq - 1;
                    return Ok(());
                }
                (Some(seq), false) => {
                    range.low = seq + 1;
                    return Ok(());
                }
                (None, _) => range.high = 0,
            }
        }
        Ok(())
    }

    /// Returns the statement for the next records of `ranges`, in order.
    fn statement(&self, ranges: &[Range]) -> Statement {
        let numbers = |number: fn(&Range) -> i64| ranges.iter().map(|range| Some(number(range))).collect();
        let (condition, direction) = (
            match (&self.scan.external, self.scan.about) {
                (Some(_), _) => "AND sha256(r.external) = sha256($4) AND r.external = $4",
                (None, Some(_)) => "AND r.about = $4",
                (None, None) => "",
            },
            if self.scan.order == ScanOrder::NewestFirst { "DESC" } else { "" },
        );
        let text = format!(
            "SELECT r.scope, r.seq, r.codec, r.digest, r.header, r.body IS NOT NULL
             FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) WITH ORDINALITY AS w (scope, low, high, n)
             JOIN waypost.records r ON r.scope = w.scope AND r.seq BETWEEN w.low AND w.high {condition}
             ORDER BY w.n, r.seq {direction} LIMIT {RECORDS_AT_ONCE}"
        );
        let statement = Statement::new(text)
            .ints(numbers(|range| range.scope.id))
            .ints(numbers(|range| int(range.low)))
            .ints(numbers(|range| int(range.high)));
        match (&self.scan.external, self.scan.about) {
            (Some(external), _) => statement.bytes(external.clone().into_bytes()),
            (None, Some(about)) => statement.int(int(about)),
            (None, None) => statement,
        }
    }

    fn is_full(&self, found: &Found) -> bool {
        match found {
            Found::Sound(record) => self.scan.wants(record) && self.found.records.len() == self.limit,
            Found::Damaged(_) => self.found.damaged.len() == PAGE_ITEMS_MAX,
            Found::Absent => false,
        }
    }

    fn take(&mut self, found: Found) {
        match found {
            Found::Sound(record) if self.scan.wants(&record) => self.found.records.push(*record),
            Found::Sound(_) | Found::Absent => {}
            Found::Damaged(damage) => self.found.damaged.push(*damage),
        }
    }
}
