//! New runs and new records, each batch in one transaction.
//!
//! All checks precede the first write, so a refusal leaves the database unchanged.

use std::collections::HashMap;

use rusqlite::{Connection, params};
use waypost::id::{Digest, RunId, ScopePath};
use waypost::record::{Reason, Record, RunStatus, SealedRun};
use waypost::store::{Appended, Batch, FIRST_TOKEN, StoreError};

use crate::database::error::{Failure, SqliteError};
use crate::database::heads::RunRow;
use crate::database::heads::{HeadEnd, Newest};
use crate::database::open::Place;
use crate::database::values::{int, time_text};
use crate::tables::rows::{Found, SCOPE_ID_MAX, SEQ_MAX, Want, fetch, key};
use crate::tables::run_copies;
use crate::tables::runs::labels_text;
use crate::tables::scope::{Scope, newest_row};
use waypost_codec::encode::{CODEC_DELTA, CODEC_FULL};
use waypost_codec::encode::{Encoded, StoredBody, encode_full};

/// Creates a run with its first batch; its lease has [`FIRST_TOKEN`]. Returns whether every body was stored
/// as packed.
pub(crate) fn create(
    connection: &Connection,
    place: &Place,
    run: &SealedRun,
    first: &Batch,
    encoded: &[Encoded],
) -> Result<bool, Failure> {
    let record = run.record();
    first.check(&record.run, FIRST_TOKEN)?;
    if RunRow::find(connection, &record.run)?.is_some() {
        return Err(StoreError::Exists { run: record.run.clone() }.into());
    }
    let chains = Chains::of(connection, place, None, &first.records)?;
    let labels = labels_text(record);
    let created_at = time_text(record.created_at);
    let id: i64 = connection
        .prepare_cached(
            "INSERT INTO runs
             VALUES (NULL, ?1, ?2, ?3, ?4, ?5, ?5, ?6, 0, NULL, 0, 0, NULL, 0, 0, 0, 0, ?7, 1, 0, 0, 0, 1, 0, 0)
             RETURNING id",
        )?
        .query_row(
            params![
                record.run.as_str(),
                record.workflow,
                record.path,
                labels,
                created_at,
                first.summary.as_ref().map_or(RunStatus::Running, |summary| summary.status).name(),
                int(FIRST_TOKEN)
            ],
            |row| row.get(0),
        )?;
    run_copies::insert(connection, place, id, run)?;
    write(connection, place, id, first, encoded, chains).map(|(as_packed, _)| as_packed)
}

/// Appends a packed batch under the lease with `token`. Returns whether every body was stored as packed.
pub(crate) fn append(
    connection: &Connection,
    place: &Place,
    run: &RunId,
    token: u64,
    batch: &Batch,
    encoded: &[Encoded],
) -> Result<(Appended, bool), Failure> {
    let (row, main) = match place.head_cache.take(run) {
        Some((row, main)) => (row, Some(main)),
        None => match HeadEnd::of_main(connection, run)? {
            Some(found) => found,
            None => (RunRow::get(connection, run)?, None),
        },
    };
    if batch.id.token == row.batch.0 && batch.id.count <= row.batch.1 {
        return answered_before(connection, row.id, batch).map(|answer| (answer, false));
    }
    row.fence(run, token)?;
    batch.check(run, token)?;
    let chains = Chains::of(connection, place, Some((row.id, main.clone())), &batch.records)?;
    let (as_packed, end) = write(connection, place, row.id, batch, encoded, chains)?;
    if !batch.release
        && let Some(end) = end.or(main)
    {
        place.head_cache.put(run, RunRow { batch: (batch.id.token, batch.id.count), ..row }, end);
    }
    Ok((Appended::Now, as_packed))
}

/// Acknowledges a repeated batch after verifying its last record: the batch number alone could be damaged.
fn answered_before(connection: &Connection, run: i64, batch: &Batch) -> Result<Appended, Failure> {
    let Some(last) = batch.records.last() else { return Ok(Appended::Before) };
    let header = last.header();
    let mut kept = false;
    if let Some(scope) = Scope::find(connection, run, &header.scope)?
        && header.seq <= scope.newest
    {
        kept = connection
            .prepare_cached("SELECT 1 FROM records WHERE key = ?1 AND digest = ?2")?
            .exists(params![key(scope.id, header.seq), last.digest().as_bytes()])?;
    }
    if kept {
        return Ok(Appended::Before);
    }
    Err(conflict(last, "another batch had the same id".to_owned()))
}

fn conflict(record: &Record, why: String) -> Failure {
    let header = record.header();
    let (run, scope, seq) = (header.run.clone(), header.scope.clone(), header.seq);
    StoreError::Conflict { run, scope, seq, why }.into()
}

/// The end of a scope, with the additions of this batch.
struct Chain {
    id: Option<i64>,
    open: bool,
    newest: u64,
    /// Seq and stored digest of the newest existing record.
    last: Option<(u64, Digest)>,
    /// The newest record before this batch, if its body is a frame.
    framed: Option<(u64, Digest)>,
    bodies: u64,
}

/// The scopes of a batch, in the order of their first record.
struct Chains {
    order: Vec<ScopePath>,
    by_path: HashMap<ScopePath, Chain>,
}

impl Chains {
    /// Checks that `records` continue the chains of their scopes.
    fn of(
        connection: &Connection,
        place: &Place,
        run: Option<(i64, Option<HeadEnd>)>,
        records: &[Record],
    ) -> Result<Self, Failure> {
        let (run, mut main) = run.map_or((None, None), |(run, main)| (Some(run), main));
        let mut chains = Self { order: Vec::new(), by_path: HashMap::new() };
        for record in records {
            let header = record.header();
            if !chains.by_path.contains_key(&header.scope) {
                let chain = match main.take() {
                    Some(end) if header.scope.is_main() => Chain::behind(connection, end)?,
                    other => {
                        main = other;
                        Chain::find(connection, run, &header.scope)?
                    }
                };
                chains.order.push(header.scope.clone());
                chains.by_path.insert(header.scope.clone(), chain);
            }
            let chain = chains.by_path.get_mut(&header.scope).expect("the entry was added just before");
            if let Err(failure) = chain.check(connection, place, record) {
                chain.settle(connection, run, &header.scope).transpose().ok_or(failure)??;
                chain.check(connection, place, record)?;
            }
            chain.open = header.end.is_none();
            chain.newest = chain.newest.max(header.seq);
            chain.last = Some((header.seq, record.digest()));
            chain.bodies += u64::from(header.body.is_some());
        }
        Ok(chains)
    }
}

impl Chain {
    fn new() -> Self {
        Self { id: None, open: true, newest: 0, last: None, framed: None, bodies: 0 }
    }

    fn behind(connection: &Connection, end: HeadEnd) -> Result<Self, Failure> {
        let HeadEnd { scope, newest, record } = end;
        let last = match &record {
            Some(record) => Some((newest, record.digest)),
            None => newest_row(connection, scope, newest)?,
        };
        let framed = record.filter(Newest::is_framed).map(|record| (newest, record.digest));
        Ok(Self { id: Some(scope), newest, last, framed, ..Self::new() })
    }

    fn find(connection: &Connection, run: Option<i64>, path: &ScopePath) -> Result<Self, Failure> {
        let Some(run) = run else { return Ok(Self::new()) };
        let end = if path.is_main() {
            let main = Scope::find(connection, run, path)?;
            main.map(|main| HeadEnd { scope: main.id, newest: main.newest, record: None })
        } else {
            HeadEnd::of_child(connection, run, path)?
        };
        end.map_or_else(|| Ok(Self::new()), |end| Self::behind(connection, end))
    }

    /// Redetermines the end of the chain from its records instead of the cached values; `None` if unchanged.
    fn settle(
        &mut self,
        connection: &Connection,
        run: Option<i64>,
        path: &ScopePath,
    ) -> Result<Option<()>, Failure> {
        let Some(run) = run.filter(|_| self.bodies == 0) else { return Ok(None) };
        let Some(scope) = Scope::find(connection, run, path)? else { return Ok(None) };
        let scope = scope.settled(connection, run)?;
        if (Some(scope.id), scope.newest) == (self.id, self.newest) {
            return Ok(None);
        }
        let end = HeadEnd { scope: scope.id, newest: scope.newest, record: None };
        *self = Self::behind(connection, end)?;
        Ok(Some(()))
    }

    /// Returns whether a delta is based on the record at the end of this chain.
    fn has_framed(&self, body: &StoredBody) -> bool {
        matches!(body, StoredBody::Delta(_, base, digest) if self.framed == Some((*base, *digest)))
    }

    fn check(&self, connection: &Connection, place: &Place, record: &Record) -> Result<(), Failure> {
        let header = record.header();
        let next = self.newest + 1;
        if next > SEQ_MAX {
            return Err(conflict(record, format!("a scope has at most {SEQ_MAX} records")));
        }
        let last_seq = self.last.map_or(0, |(seq, _)| seq);
        if header.reason == Reason::Repair && header.seq > last_seq && header.seq <= next {
            return self.check_repair(connection, place, record);
        }
        if header.seq != next {
            return Err(conflict(record, format!("the next record is {next}")));
        }
        if last_seq != self.newest {
            let newest = self.newest;
            return Err(conflict(record, format!("{newest} is damaged: only a repair may follow")));
        }
        let digest = self.last.map(|(_, digest)| digest);
        if header.prev != digest {
            return Err(conflict(record, mismatch(header.prev, digest)));
        }
        Ok(())
    }

    /// A repair follows the newest sound record, or an earlier sound record down to the newest body, past all
    /// damage.
    fn check_repair(&self, connection: &Connection, place: &Place, record: &Record) -> Result<(), Failure> {
        let header = record.header();
        let sound = match self.id {
            // Records of this batch are sound, so earlier records need no check.
            Some(id) if self.bodies == 0 => {
                let path = header.scope.clone();
                let scope = Scope { id, path, open: true, newest: self.newest, loss: None };
                let mut sound = Vec::new();
                for seq in (1..header.seq).rev() {
                    if let Found::Sound(found) =
                        fetch(connection, place, &header.run, &scope, seq, Want::Whole)?
                    {
                        sound.push(found.digest());
                        if found.body_bytes().is_some() {
                            break;
                        }
                    }
                }
                sound
            }
            _ => self.last.iter().map(|(_, digest)| *digest).collect(),
        };
        let fits = header.prev.map_or(sound.is_empty(), |prev| sound.contains(&prev));
        if fits { Ok(()) } else { Err(conflict(record, mismatch(header.prev, sound.first().copied()))) }
    }
}

fn mismatch(found: Option<Digest>, expect: Option<Digest>) -> String {
    let text = |digest: Option<Digest>| digest.map_or_else(|| "none".to_owned(), |digest| digest.to_string());
    format!("`prev` is {}, but the record before has digest {}", text(found), text(expect))
}

/// Returns whether every body was stored as packed, and the end of the main scope if the batch adds to it.
fn write(
    connection: &Connection,
    place: &Place,
    run: i64,
    batch: &Batch,
    encoded: &[Encoded],
    mut chains: Chains,
) -> Result<(bool, Option<HeadEnd>), Failure> {
    let (mut opened, mut main) = (0, None);
    for path in &chains.order {
        let chain = chains.by_path.get_mut(path).expect("every path in the order has a chain");
        // The row of the run has the end of the main scope.
        let own = (!path.is_main()).then(|| ScopeEnd {
            open: chain.open,
            newest: int(chain.newest),
            bodies: int(chain.bodies),
        });
        if chain.id.is_none() {
            chain.id = Some(open_scope(connection, run, path, own.as_ref())?);
            opened += 1;
        } else if let Some(ScopeEnd { open, newest, bodies }) = own {
            connection
                .prepare_cached(
                    "UPDATE scopes SET open = ?2, newest = ?3, bodies = bodies + ?4 WHERE id = ?1",
                )?
                .execute((chain.id, open, newest, bodies))?;
        }
        if path.is_main() {
            main = Some(MainEnd {
                scope: chain.id,
                open: chain.open,
                newest: chain.newest,
                bodies: chain.bodies,
            });
        }
    }
    let (mut bytes, mut as_packed, mut end) = (0, true, None);
    for (record, encoded) in batch.records.iter().zip(encoded) {
        let chain = &chains.by_path[&record.header().scope];
        let id = chain.id.expect("every scope has an id by now");
        let alone;
        let body = if chain.has_framed(&encoded.body) || is_base_there(connection, id, &encoded.body)? {
            &encoded.body
        } else {
            as_packed = false;
            alone = encode_full(&place.delta_cache, record);
            &alone
        };
        bytes += write_record(connection, id, record, encoded, body)?;
        if record.header().scope.is_main() {
            // A repair may precede the newest seq, whose record is missing.
            let newest = Newest::new(record.digest(), body.codec());
            let record = (record.header().seq == chain.newest).then_some(newest);
            end = Some(HeadEnd { scope: id, newest: chain.newest, record });
        }
    }
    take_in(connection, run, &batch.consumed)?;
    summarise(connection, run, batch, bytes, opened, main)?;
    Ok((as_packed, end))
}

/// Marks messages as consumed, and drops their content: a message may contain a secret, and only the session that consumed
/// the message can mask the secret.
fn take_in(connection: &Connection, run: i64, consumed: &[String]) -> Result<(), Failure> {
    if consumed.is_empty() {
        return Ok(());
    }
    connection.pragma_update(None, "secure_delete", true)?;
    for signal in consumed {
        connection
            .prepare_cached(
                "UPDATE signals SET consumed = 1, digest = x'', message = x'' WHERE run = ?1 AND name = ?2",
            )?
            .execute((run, signal))?;
    }
    Ok(connection.pragma_update(None, "secure_delete", "FAST")?)
}

/// The end of a scope, as its row stores it.
struct ScopeEnd {
    open: bool,
    newest: i64,
    bodies: i64,
}

/// Opens a scope. `end` is absent if the row of the run stores it.
fn open_scope(
    connection: &Connection,
    run: i64,
    path: &ScopePath,
    end: Option<&ScopeEnd>,
) -> Result<i64, Failure> {
    let (open, newest) = (end.map(|end| end.open), end.map(|end| end.newest));
    let id = connection
        .prepare_cached("INSERT INTO scopes VALUES (NULL, ?1, ?2, ?3, ?4, ?5) RETURNING id")?
        .query_row((run, path.as_str(), open, newest, end.map(|end| end.bodies)), |row| row.get(0))?;
    if id > SCOPE_ID_MAX {
        return Err(SqliteError::refused(format!("a store has at most {SCOPE_ID_MAX} scopes")).into());
    }
    Ok(id)
}

/// Returns whether the base of a delta is still stored as a frame with the expected digest. It may be in
/// quarantine by now, or the run may have been recreated.
fn is_base_there(connection: &Connection, scope: i64, body: &StoredBody) -> Result<bool, Failure> {
    let StoredBody::Delta(_, base, digest) = body else { return Ok(true) };
    let found = connection
        .prepare_cached("SELECT 1 FROM records WHERE key = ?1 AND digest = ?2 AND codec IN (?3, ?4)")?
        .exists(params![key(scope, *base), digest.as_bytes(), CODEC_FULL, CODEC_DELTA]);
    match found.map_err(SqliteError::from) {
        Err(fault) if !fault.is_corrupt() => Err(fault.into()),
        found => Ok(found.unwrap_or(false)),
    }
}

/// Writes a record. Returns the number of stored bytes.
fn write_record(
    connection: &Connection,
    scope: i64,
    record: &Record,
    encoded: &Encoded,
    body: &StoredBody,
) -> Result<usize, Failure> {
    let header = record.header();
    let (codec, body) = body.columns(record.body_bytes().map(|body| body.as_slice()));
    connection.prepare_cached("INSERT INTO records VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)")?.execute(
        params![
            key(scope, header.seq),
            header.external,
            header.about.map(int),
            codec,
            record.digest().as_bytes(),
            encoded.header,
            body,
        ],
    )?;
    Ok(encoded.header.len() + body.map_or(0, <[u8]>::len))
}

/// The end of the main scope after a batch, with the number of added bodies.
#[derive(Debug, Clone, Copy)]
struct MainEnd {
    scope: Option<i64>,
    open: bool,
    newest: u64,
    bodies: u64,
}

fn summarise(
    connection: &Connection,
    run: i64,
    batch: &Batch,
    bytes: usize,
    opened: i64,
    main: Option<MainEnd>,
) -> Result<(), Failure> {
    let summary = batch.summary.as_ref();
    let updated_at = batch.changed_at().map(time_text);
    connection
        .prepare_cached(
            "UPDATE runs SET status = ifnull(?2, status), doubtful = ifnull(?3, doubtful),
                 step = iif(?2 IS NULL, step, ?4), done = ifnull(?5, done), total = ifnull(?6, total),
                 wake_at = iif(?2 IS NULL, wake_at, ?7), lost = ifnull(?8, lost), updated_at = ifnull(?9, updated_at), checkpoints = checkpoints + ?10,
                 bytes = bytes + ?11, scopes = scopes + ?12, batch_token = ?13,
                 batch_count = ?14, leased = ?15, main = ifnull(?16, main),
                 main_open = ifnull(?17, main_open), main_newest = ifnull(?18, main_newest),
                 main_bodies = main_bodies + ?19
             WHERE id = ?1",
        )?
        .execute(params![
            run,
            summary.map(|summary| summary.status.name()),
            summary.map(|summary| summary.doubtful),
            summary.and_then(|summary| summary.step.as_deref()),
            summary.map(|summary| int(summary.progress.done)),
            summary.map(|summary| int(summary.progress.total)),
            summary.and_then(|summary| summary.wake_at).map(time_text),
            summary.map(|summary| int(summary.lost)),
            updated_at,
            int(batch.records.len() as u64),
            int(bytes as u64),
            opened,
            int(batch.id.token),
            int(batch.id.count),
            !batch.release,
            main.map(|main| main.scope),
            main.map(|main| main.open),
            main.map(|main| int(main.newest)),
            main.map_or(0, |main| int(main.bodies)),
        ])?;
    Ok(())
}
