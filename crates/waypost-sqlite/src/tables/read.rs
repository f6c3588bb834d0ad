//! Heads, single records, and pages of records.

use rusqlite::Connection;
use waypost::id::{RunId, ScopePath};
use waypost::record::Record;
use waypost::store::{Damage, Head, Heads, PAGE_ITEMS_MAX, Page, Scan, ScanOrder, Scanned, StoreError};

use crate::database::error::Failure;
use crate::database::heads::RunRow;
use crate::database::open::Place;
use crate::database::values::int;
use crate::tables::counters;
use crate::tables::rows::{Found, SEQ_MAX, Want, fetch, key, seq_of};
use crate::tables::scope::Scope;
use crate::tables::tail_check::{Acknowledged, Lost};

/// Bytes of bodies per page of heads: a page has at least one head, and at most a few of the largest.
const PAGE_BODY_BYTES_MAX: usize = 128 << 20;
/// Scopes read from the table per query.
const SCOPES_AT_ONCE: usize = 256;
/// Keys read from an index per query.
const KEYS_AT_ONCE: usize = 256;

/// A read transaction and its store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) place: &'a Place,
}

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
        match parsed {
            Some(cursor) => Ok(Some(cursor)),
            None => Err(unknown_cursor(text)),
        }
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

impl View<'_> {
    fn fetch(&self, run: &RunId, scope: &Scope, seq: u64, want: Want) -> Result<Found, Failure> {
        fetch(self.connection, self.place, run, scope, seq, want)
    }

    /// Returns the newest sound record of each open scope.
    pub(crate) fn heads(
        &self,
        run: &RunId,
        page: &Page,
        acknowledged: Acknowledged,
    ) -> Result<Heads, Failure> {
        let limit = page.limit.clamp(1, PAGE_ITEMS_MAX);
        let cursor = Cursor::parse(page.cursor.as_ref())?;
        let id = RunRow::get(self.connection, run)?.id;
        if cursor.is_none() {
            counters::check_scopes(self.connection, id)?;
        }
        let lost = Lost::of(*self, run, id, acknowledged)?;
        let mut from = cursor.map_or(0, |cursor| cursor.scope);
        let mut heads = Vec::new();
        let mut body_bytes = 0;
        loop {
            let scopes = Scope::list(self.connection, id, from, SCOPES_AT_ONCE)?;
            let Some(last) = scopes.last() else { return Ok(Heads { heads, next: None }) };
            from = last.id + 1;
            for scope in scopes {
                let scope = lost.extend(scope.settled(self.connection, id)?);
                if self.has_ended(run, &scope)? {
                    continue;
                }
                let at = Cursor { scope: scope.id, seq: 0 };
                if heads.len() == limit || body_bytes > PAGE_BODY_BYTES_MAX {
                    return Ok(Heads { heads, next: Some(at.text()) });
                }
                if let Some(head) = self.head(run, &scope)? {
                    body_bytes += head.record.body_bytes().map_or(0, |body| body.len());
                    heads.push(head);
                }
            }
        }
    }

    /// Returns whether a scope that is stored as ended has a sound newest record, and so is not a head. For
    /// the main scope, the body must be sound too, because it is the result of the run. Joins read the
    /// bodies of other scopes.
    fn has_ended(&self, run: &RunId, scope: &Scope) -> Result<bool, Failure> {
        if scope.open {
            return Ok(false);
        }
        let want = if scope.path.is_main() { Want::Whole } else { Want::Header };
        let newest = self.fetch(run, scope, scope.newest, want)?;
        Ok(matches!(newest, Found::Sound(record) if record.header().end.is_some()))
    }

    /// Returns the head of a scope; `None` if the scope has ended.
    fn head(&self, run: &RunId, scope: &Scope) -> Result<Option<Head>, Failure> {
        let mut damaged: Vec<Damage> = Vec::new();
        for seq in (1..=scope.newest).rev() {
            match self.fetch(run, scope, seq, Want::Whole)? {
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

    /// Returns a verified record. With `acknowledged`, a missing record may turn out to be lost.
    pub(crate) fn load(
        &self,
        run: &RunId,
        path: &ScopePath,
        seq: u64,
        acknowledged: Option<Acknowledged>,
    ) -> Result<Record, Failure> {
        let id = RunRow::get(self.connection, run)?.id;
        let mut scope = Scope::get(self.connection, id, path)?
            .ok_or_else(|| StoreError::no_scope(run, path))?
            .settled(self.connection, id)?;
        if let Some(acknowledged) = acknowledged {
            scope = Lost::of(*self, run, id, acknowledged)?.extend(scope);
        }
        let found = match seq {
            1.. if seq <= scope.newest => self.fetch(run, &scope, seq, Want::Whole)?,
            _ => Found::Absent,
        };
        match found {
            Found::Sound(record) => Ok(*record),
            Found::Absent => Err(StoreError::no_record(run, path, seq).into()),
            Found::Damaged(damage) => {
                let older = self.newest_sound_below(run, &scope, seq)?;
                Err(StoreError::of_damage(*damage, older).into())
            }
        }
    }

    fn newest_sound_below(&self, run: &RunId, scope: &Scope, seq: u64) -> Result<Option<u64>, Failure> {
        for older in (1..seq).rev() {
            if let Found::Sound(_) = self.fetch(run, scope, older, Want::Whole)? {
                return Ok(Some(older));
            }
        }
        Ok(None)
    }

    /// Returns a page of headers.
    pub(crate) fn scan(&self, scan: &Scan, acknowledged: Acknowledged) -> Result<Scanned, Failure> {
        let cursor = Cursor::parse(scan.cursor.as_ref())?;
        let id = RunRow::get(self.connection, &scan.run)?.id;
        let lost = Lost::of(*self, &scan.run, id, acknowledged)?;
        let whole = |scope: Scope| scope.settled(self.connection, id).map(|scope| lost.extend(scope));
        let mut found = Scanned { records: Vec::new(), damaged: Vec::new(), next: None };
        if let Some(path) = &scan.scope {
            if let Some(scope) = Scope::get(self.connection, id, path)? {
                self.scan_scope(scan, whole(scope)?, cursor, &mut found)?;
            }
            return Ok(found);
        }
        if cursor.is_none() {
            counters::check_scopes(self.connection, id)?;
        }
        let mut from = cursor.map_or(0, |cursor| cursor.scope);
        loop {
            let scopes = Scope::list(self.connection, id, from, SCOPES_AT_ONCE)?;
            let Some(last) = scopes.last() else { return Ok(found) };
            from = last.id + 1;
            for scope in scopes {
                self.scan_scope(scan, whole(scope)?, cursor, &mut found)?;
                if found.next.is_some() {
                    return Ok(found);
                }
            }
        }
    }

    /// Adds the matching records of a scope; sets `next` when the page is full.
    fn scan_scope(
        &self,
        scan: &Scan,
        scope: Scope,
        cursor: Option<Cursor>,
        found: &mut Scanned,
    ) -> Result<(), Failure> {
        let limit = scan.limit.clamp(1, PAGE_ITEMS_MAX);
        let mut low = scan.seq_min.unwrap_or(1).max(1);
        let mut high = scan.seq_max.unwrap_or(SEQ_MAX).min(scope.newest);
        if let Some(cursor) = cursor.filter(|cursor| cursor.scope == scope.id) {
            match scan.order {
                ScanOrder::OldestFirst => low = low.max(cursor.seq),
                ScanOrder::NewestFirst => high = high.min(cursor.seq),
            }
        }
        while low <= high {
            let seqs = self.candidates(scan, &scope, low, high)?;
            for seq in &seqs {
                let item = match self.fetch(&scan.run, &scope, *seq, Want::Header)? {
                    Found::Sound(record) if scan.wants(&record) => Ok(*record),
                    Found::Sound(_) | Found::Absent => continue,
                    Found::Damaged(damage) => Err(*damage),
                };
                let full = match &item {
                    Ok(_) => found.records.len() == limit,
                    Err(_) => found.damaged.len() == PAGE_ITEMS_MAX,
                };
                if full {
                    found.next = Some(Cursor { scope: scope.id, seq: *seq }.text());
                    return Ok(());
                }
                match item {
                    Ok(record) => found.records.push(record),
                    Err(damage) => found.damaged.push(damage),
                }
            }
            let Some(last) = seqs.last() else { return Ok(()) };
            match scan.order {
                ScanOrder::OldestFirst => low = last + 1,
                ScanOrder::NewestFirst => high = last - 1,
            }
        }
        Ok(())
    }

    /// Returns the next candidate seqs, at most [`KEYS_AT_ONCE`]: the whole range, or the entries of an
    /// index.
    fn candidates(&self, scan: &Scan, scope: &Scope, low: u64, high: u64) -> Result<Vec<u64>, Failure> {
        let newest_first = scan.order == ScanOrder::NewestFirst;
        let (sql, asked): (_, rusqlite::types::Value) = match (&scan.external, scan.about) {
            (Some(external), _) if newest_first => (EXTERNAL_NEWEST_FIRST, external.clone().into()),
            (Some(external), _) => (EXTERNAL_OLDEST_FIRST, external.clone().into()),
            (None, Some(about)) if newest_first => (ABOUT_NEWEST_FIRST, int(about).into()),
            (None, Some(about)) => (ABOUT_OLDEST_FIRST, int(about).into()),
            (None, None) if newest_first => return Ok((low..=high).rev().take(KEYS_AT_ONCE).collect()),
            (None, None) => return Ok((low..=high).take(KEYS_AT_ONCE).collect()),
        };
        let mut statement = self.connection.prepare_cached(sql)?;
        let bounds = (asked, key(scope.id, low), key(scope.id, high), int(KEYS_AT_ONCE as u64));
        let keys = statement.query_map(bounds, |row| row.get::<_, i64>(0))?;
        Ok(keys.map(|key| key.map(seq_of)).collect::<Result<_, _>>()?)
    }
}

const EXTERNAL_OLDEST_FIRST: &str =
    "SELECT key FROM records WHERE external = ?1 AND key BETWEEN ?2 AND ?3 ORDER BY key LIMIT ?4";
const EXTERNAL_NEWEST_FIRST: &str =
    "SELECT key FROM records WHERE external = ?1 AND key BETWEEN ?2 AND ?3 ORDER BY key DESC LIMIT ?4";
const ABOUT_OLDEST_FIRST: &str =
    "SELECT key FROM records WHERE about = ?1 AND key BETWEEN ?2 AND ?3 ORDER BY key LIMIT ?4";
const ABOUT_NEWEST_FIRST: &str =
    "SELECT key FROM records WHERE about = ?1 AND key BETWEEN ?2 AND ?3 ORDER BY key DESC LIMIT ?4";
