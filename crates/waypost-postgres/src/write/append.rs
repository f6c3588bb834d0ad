//! New runs and new records: each batch is a single statement. The usual batch, one record of the main scope, has a
//! short one.
//!
//! ```text
//!   locked   the rows of all scopes of the batch, in order: the lease has the token, each chain the expected end
//!   fence    all rows are locked, or nothing below happens
//!   opened   rows of new scopes          put    the records
//!   consumed the messages                moved  the ends, the summary and the lease
//!   woken    the place of a waiting or returned run in the queue
//! ```
//!
//! The rows are locked before their token is read, so a new holder cannot come between the comparison and the
//! write. An applied batch moves the ends, so the same batch is never applied again.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::LazyLock;

use waypost::id::{CheckpointRef, Digest, RunId, ScopePath};
use waypost::lock::Holder;
use waypost::record::{Durability, Flaw, Reason, Record, RunStatus, SealedRun};
use waypost::store::{Appended, Batch, Damage, FIRST_TOKEN, Job, StoreError, Summary};
use waypost_codec::encode::{Encoded, StoredBody};
use waypost_codec::header;

use crate::database::connect::Database;
use crate::database::error::Failure;
use crate::database::schema::{self, VERSION};
use crate::database::statement::Statement;
use crate::database::values::{count, int, key_of, main_key, time_text};
use crate::queue::jobs;
use crate::tables::lease::LeaseRow;
use crate::tables::runs::{holder_text, with_summary};
use crate::tables::{scopes, signals};
use crate::write::chain::{Chain, add_sizes, chains, conflict, digest_of, mismatch, of_new_run};

/// `$1` to `$10`: the scopes of the batch.
const SCOPES: &str =
    "ends (key, path, is_new, head, tip, newest, last, open, bodies, records, bytes, n) AS MATERIALIZED (
    SELECT * FROM unnest($1::bytea[], $2::text[], $3::bool[], $4::bigint[], $5::bytea[], $6::bigint[],
        $7::bytea[], $8::bool[], $9::bigint[], $10::bigint[], $11::bigint[]) WITH ORDINALITY)";

/// `$12` to `$19`: the records of the batch, into the scopes of `places (id, key)`.
const PUT: &str = "put AS (
    INSERT INTO waypost.records (scope, seq, external, about, codec, base, digest, header, body)
    SELECT p.id, r.seq, r.external, r.about, r.codec, r.base, r.digest, r.header, r.body
    FROM unnest($12::bytea[], $13::bigint[], $14::bytea[], $15::bigint[], $16::bigint[], $17::bigint[],
        $18::bytea[], $19::bytea[], $20::bytea[]) AS r (key, seq, external, about, codec, base, digest, header, body)
    JOIN places p ON p.key = r.key
    RETURNING 1)";

/// `$21` to `$28`: the summary.
const CREATE: &str = "WITH {SCOPES},
made AS (
    INSERT INTO waypost.runs (name, workflow, path, labels, created_at)
    SELECT $32, $33, $34, $35, $36 WHERE (SELECT version FROM waypost.version) = $40
    ON CONFLICT (name) DO NOTHING RETURNING id),
frozen AS (INSERT INTO waypost.frozen (run, digest, record) SELECT id, $37, $38 FROM made RETURNING 1),
places AS (
    INSERT INTO waypost.scopes (run, key, path, open, newest, tip, bodies, records, bytes, token, held, holder,
        worker, batch_token, batch_count, updated_at, status, doubtful, step, done, total, wake_at, lost)
    SELECT made.id, e.key, e.path, e.open, e.newest, e.last, e.bodies, e.records, e.bytes,
        CASE WHEN e.key = $29 THEN $30 ELSE 0 END, e.key = $29 AND NOT $31,
        CASE WHEN e.key = $29 THEN $39 END,
        CASE WHEN e.key = $29 THEN $41 END,
        CASE WHEN e.key = $29 THEN $30 ELSE 0 END, CASE WHEN e.key = $29 THEN $42 ELSE 0 END,
        CASE WHEN e.key = $29 THEN $43 END, CASE WHEN e.key = $29 THEN $22 END,
        $21 AND e.key = $29 AND $23, CASE WHEN e.key = $29 THEN $24 END,
        CASE WHEN e.key = $29 THEN $25 ELSE 0 END, CASE WHEN e.key = $29 THEN $26 ELSE 0 END,
        CASE WHEN e.key = $29 THEN $27 END, CASE WHEN e.key = $29 THEN $28 ELSE 0 END
    FROM made, ends e ORDER BY e.n RETURNING id, key),
{PUT}
SELECT (SELECT count(*) FROM made), (SELECT count(*) FROM put)";

/// `$44` to `$49`: the place of a created run in the queue, and the files of its submission.
const QUEUED: &str = ",
queued AS (
    INSERT INTO waypost.jobs (run, priority, needs, not_before)
    SELECT id, $44, $45, $46::timestamptz FROM made RETURNING run),
readied AS (
    INSERT INTO waypost.ready (scope, run, priority, not_before)
    SELECT p.id, q.run, $44, $46::timestamptz FROM queued q, places p WHERE p.key = $29),
included AS (
    INSERT INTO waypost.blobs (run, name, at, bytes)
    SELECT q.run, $47, f.at, f.bytes FROM queued q, unnest($48::bigint[], $49::bytea[]) AS f (at, bytes))
SELECT (SELECT count(*) FROM made),";

/// A run that waits is ready after the rest of its wait, by the clock of the server.
const APPEND: &str = "WITH {SCOPES},
locked AS MATERIALIZED (
    SELECT s.id, s.key FROM waypost.scopes s JOIN ends e ON e.key = s.key
    WHERE s.run = (SELECT id FROM waypost.runs WHERE name = $32) AND NOT e.is_new
        AND (e.head IS NULL OR (s.newest = e.head AND s.tip IS NOT DISTINCT FROM e.tip))
        AND (s.key <> $29 OR (s.token = $30 AND s.held))
    ORDER BY s.id FOR NO KEY UPDATE OF s),
fence AS MATERIALIZED (
    SELECT count(*) = (SELECT count(*) FROM ends WHERE NOT is_new)
        AND (SELECT version FROM waypost.version) = $33 AS holds FROM locked),
opened AS (
    INSERT INTO waypost.scopes (run, key, path, open, newest, tip, bodies, records, bytes)
    SELECT r.id, e.key, e.path, e.open, e.newest, e.last, e.bodies, e.records, e.bytes
    FROM ends e JOIN waypost.runs r ON r.name = $32
    WHERE e.is_new AND (SELECT holds FROM fence) ORDER BY e.n RETURNING id, key),
places AS (
    SELECT id, key FROM locked WHERE (SELECT holds FROM fence) UNION ALL SELECT id, key FROM opened),
{PUT},
consumed AS (
    UPDATE waypost.signals s SET consumed = true, message = '' FROM waypost.runs r
    WHERE r.name = $32 AND s.run = r.id AND s.key = ANY($34) AND (SELECT holds FROM fence) RETURNING 1),
moved AS (
    UPDATE waypost.scopes s SET
        newest = coalesce(e.newest, s.newest),
        tip = CASE WHEN e.newest IS NULL THEN s.tip ELSE e.last END,
        open = CASE WHEN e.newest IS NULL THEN s.open ELSE e.open END,
        bodies = s.bodies + e.bodies, records = s.records + e.records, bytes = s.bytes + e.bytes,
        held = s.held AND NOT (s.key = $29 AND $31),
        batch_token = CASE WHEN s.key = $29 THEN $30 ELSE s.batch_token END,
        batch_count = CASE WHEN s.key = $29 THEN $35 ELSE s.batch_count END,
        updated_at = CASE WHEN s.key = $29 THEN coalesce($36, s.updated_at) ELSE s.updated_at END,
        status = CASE WHEN s.key = $29 AND $21 THEN $22 ELSE s.status END,
        doubtful = CASE WHEN s.key = $29 AND $21 THEN $23 ELSE s.doubtful END,
        step = CASE WHEN s.key = $29 AND $21 THEN $24 ELSE s.step END,
        done = CASE WHEN s.key = $29 AND $21 THEN $25 ELSE s.done END,
        total = CASE WHEN s.key = $29 AND $21 THEN $26 ELSE s.total END,
        wake_at = CASE WHEN s.key = $29 AND $21 THEN $27 ELSE s.wake_at END,
        lost = CASE WHEN s.key = $29 AND $21 THEN $28 ELSE s.lost END
    FROM ends e, locked l WHERE s.id = l.id AND e.key = l.key AND (SELECT holds FROM fence) RETURNING 1),
woken AS (
    INSERT INTO waypost.ready (scope, run, priority, not_before)
    SELECT l.id, j.run, j.priority, CASE WHEN $22 = 'waiting' THEN
        coalesce(clock_timestamp() + ($27::timestamptz - $36::timestamptz), $27::timestamptz) END FROM locked l
    JOIN waypost.runs r ON r.name = $32 JOIN waypost.jobs j ON j.run = r.id
    WHERE $31 AND ($22 = 'queued' OR $22 = 'waiting' AND $27 IS NOT NULL)
        AND l.key = $29 AND (SELECT holds FROM fence)
    ON CONFLICT (scope) DO NOTHING RETURNING 1)
SELECT (SELECT holds FROM fence), (SELECT count(*) FROM put), (SELECT count(*) FROM moved),
    (SELECT count(*) FROM woken)";

/// [`APPEND`] of one record to the main scope, the usual batch: the update of the row is fence and lease. A row of the
/// answer says that the fence held.
const APPEND_ONE: &str = "WITH moved AS (
    UPDATE waypost.scopes s SET newest = $4, tip = $5, open = $6, bodies = s.bodies + $7, records = s.records + 1,
        bytes = s.bytes + $8, held = s.held AND NOT $19, batch_token = $2, batch_count = $20,
        updated_at = coalesce($21, s.updated_at),
        status = CASE WHEN $11 THEN $12 ELSE s.status END, doubtful = CASE WHEN $11 THEN $13 ELSE s.doubtful END,
        step = CASE WHEN $11 THEN $14 ELSE s.step END, done = CASE WHEN $11 THEN $15 ELSE s.done END,
        total = CASE WHEN $11 THEN $16 ELSE s.total END, wake_at = CASE WHEN $11 THEN $17 ELSE s.wake_at END,
        lost = CASE WHEN $11 THEN $18 ELSE s.lost END
    WHERE s.id = $1 AND s.token = $2 AND s.held AND s.newest = $9 AND s.tip IS NOT DISTINCT FROM $10
        AND (SELECT version FROM waypost.version) = $3
    RETURNING s.id)
INSERT INTO waypost.records (scope, seq, external, about, codec, base, digest, header, body)
SELECT id, $22, $23, $24, $25, $26, $27, $28, $29 FROM moved RETURNING true, 1::bigint";

/// Lets this transaction be acknowledged before the log is on disk.
const ASYNC: &str =
    "WITH asynchronous AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true)), ";
const ASYNC_END: &str = ", (SELECT count(*) FROM asynchronous)";

/// Returns the text of a statement.
fn text_of(statement: &str, durability: Durability) -> String {
    let text = statement.replace("{SCOPES}", SCOPES).replace("{PUT}", PUT);
    match durability {
        Durability::Sync => text,
        Durability::Async => format!("{}{ASYNC_END}", text.replacen("WITH ", ASYNC, 1)),
    }
}

/// Returns the text for an append, of one record to the main scope or of any batch.
fn append_text(is_one: bool, durability: Durability) -> &'static str {
    static TEXTS: LazyLock<[String; 4]> = LazyLock::new(|| {
        let text = |statement, durability| text_of(statement, durability);
        [
            text(APPEND, Durability::Sync),
            text(APPEND_ONE, Durability::Sync),
            text(APPEND, Durability::Async),
            text(APPEND_ONE, Durability::Async),
        ]
    });
    &TEXTS[usize::from(is_one) + 2 * usize::from(durability == Durability::Async)]
}

/// A batch to write.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Written<'a> {
    pub(crate) run: &'a RunId,
    /// The row of the main scope, if known.
    pub(crate) main: Option<i64>,
    pub(crate) token: u64,
    pub(crate) batch: &'a Batch,
    pub(crate) encoded: &'a [Encoded],
    pub(crate) durability: Durability,
}

/// Begins a statement with the common values of both statements.
fn begin(text: impl Into<Cow<'static, str>>, written: Written<'_>, mut chains: Vec<Chain>) -> Statement {
    let Written { token, batch, encoded, .. } = written;
    add_sizes(&mut chains, &batch.records, encoded);
    let digest = |digest: Option<Digest>| digest.map(|digest| digest.as_bytes().to_vec());
    let numbers = |number: fn(&Chain) -> u64| chains.iter().map(|chain| Some(int(number(chain)))).collect();
    // The lease is locked even if the batch does not write the main scope, whose end then stays.
    let has_main = chains.iter().any(|chain| chain.path.is_main());
    let lease_only = (!has_main).then_some(());
    let extra = |mut values: Vec<Option<i64>>, value| {
        values.extend(lease_only.map(|()| value));
        values
    };
    let extra_bytes = |mut values: Vec<Option<Vec<u8>>>, value: Option<Vec<u8>>| {
        values.extend(lease_only.map(|()| value));
        values
    };
    let keys = extra_bytes(chains.iter().map(|chain| Some(key_of(&chain.path))).collect(), Some(main_key()));
    let paths = chains.iter().map(|chain| chain.path.to_string());
    let paths = paths.chain(lease_only.map(|()| ScopePath::main().to_string())).collect();
    let mut is_new: Vec<bool> = chains.iter().map(|chain| chain.is_new).collect();
    is_new.extend(lease_only.map(|()| false));
    let mut open: Vec<bool> = chains.iter().map(|chain| chain.open).collect();
    open.extend(lease_only.map(|()| true));

    let records = batch.records.iter().zip(encoded);
    let mut columns = Columns::default();
    records.for_each(|(record, encoded)| columns.add(record, encoded));

    let statement = Statement::new(text)
        .bytes_list(keys)
        .texts(paths)
        .bools(is_new)
        .ints(extra(numbers(|chain| chain.head), None))
        .bytes_list(extra_bytes(chains.iter().map(|chain| digest(chain.tip)).collect(), None))
        .ints(extra(numbers(|chain| chain.newest), None))
        .bytes_list(extra_bytes(chains.iter().map(|chain| digest(chain.tip_after())).collect(), None))
        .bools(open)
        .ints(extra(numbers(|chain| chain.bodies), Some(0)))
        .ints(extra(numbers(|chain| chain.records), Some(0)))
        .ints(extra(numbers(|chain| chain.bytes), Some(0)))
        .bytes_list(columns.keys)
        .ints(columns.seqs)
        .bytes_list(columns.externals)
        .ints(columns.abouts)
        .ints(columns.codecs)
        .ints(columns.bases)
        .bytes_list(columns.digests)
        .bytes_list(columns.headers)
        .bytes_list(columns.bodies);
    with_summary(statement, batch.summary.as_ref()).bytes(main_key()).int(int(token)).bool(batch.release)
}

/// The columns of records.
#[derive(Default)]
struct Columns {
    keys: Vec<Option<Vec<u8>>>,
    seqs: Vec<Option<i64>>,
    externals: Vec<Option<Vec<u8>>>,
    abouts: Vec<Option<i64>>,
    codecs: Vec<Option<i64>>,
    bases: Vec<Option<i64>>,
    digests: Vec<Option<Vec<u8>>>,
    headers: Vec<Option<Vec<u8>>>,
    bodies: Vec<Option<Vec<u8>>>,
}

impl Columns {
    fn add(&mut self, record: &Record, encoded: &Encoded) {
        let header = record.header();
        let (codec, body) = encoded.body.columns(record.body_bytes().map(|body| body.as_slice()));
        self.keys.push(Some(key_of(&header.scope)));
        self.seqs.push(Some(int(header.seq)));
        self.externals.push(header.external.as_ref().map(|external| external.as_bytes().to_vec()));
        self.abouts.push(header.about.map(int));
        self.codecs.push(codec);
        self.bases.push(base_of(&encoded.body));
        self.digests.push(Some(record.digest().as_bytes().to_vec()));
        self.headers.push(Some(encoded.header.clone()));
        self.bodies.push(body.map(<[u8]>::to_vec));
    }
}

/// Returns the seq of the delta base.
pub(crate) fn base_of(body: &StoredBody) -> Option<i64> {
    match body {
        StoredBody::Delta(_, base, _) => Some(int(*base)),
        StoredBody::Nothing | StoredBody::Plain | StoredBody::Full(_) => None,
    }
}

/// The first owner of a new run.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Owner<'a> {
    /// The worker with the lease.
    Worker(i64),
    /// The queue; the first batch releases the lease.
    Queue(&'a Job),
}

/// Creates a run with a first batch, under a lease with [`FIRST_TOKEN`] for the holder or for the queue.
pub(crate) async fn create(
    database: &Database,
    sealed: &SealedRun,
    (holder, owner): (&Holder, Owner<'_>),
    written: Written<'_>,
) -> Result<(), Failure> {
    let (record, batch) = (sealed.record(), written.batch);
    let checked = batch.check(&record.run, FIRST_TOKEN).and_then(|()| chains_of_new(&batch.records));
    let chains = match checked {
        Ok(chains) => chains,
        Err(refusal) => {
            let exists = scopes::run_id(database, &record.run).await.is_ok();
            let run = record.run.clone();
            return Err(if exists { StoreError::Exists { run } } else { refusal }.into());
        }
    };
    let labels = serde_json::to_string(&record.labels).expect("a map of text is plain JSON");
    let kept = header::encode(&mut database.delta_cache.compressor.contexts(), sealed.bytes());
    let none = Summary::of_status(RunStatus::Running);
    let summarised = Batch { summary: Some(batch.summary.clone().unwrap_or(none)), ..batch.clone() };
    let (text, worker) = match owner {
        Owner::Worker(worker) => (CREATE.to_owned(), Some(worker)),
        Owner::Queue(_) => (CREATE.replace("\nSELECT (SELECT count(*) FROM made),", QUEUED), None),
    };
    let create = begin(text_of(&text, written.durability), Written { batch: &summarised, ..written }, chains)
        .text(record.run.as_str())
        .text(record.workflow.as_str())
        .maybe_text(record.path.clone())
        .text(labels)
        .text(time_text(record.created_at))
        .bytes(sealed.digest().as_bytes().to_vec())
        .bytes(kept)
        .text(holder_text(holder))
        .int(i64::from(VERSION))
        .int(worker)
        .int(int(batch.id.count))
        .maybe_text(batch.changed_at().map(time_text));
    let create = match owner {
        Owner::Worker(_) => create,
        Owner::Queue(job) => jobs::with_place(create, job),
    };
    let answer = database.run(&create).await?;
    if answer.row()?.get::<_, i64>(0) == 1 {
        return Ok(());
    }
    schema::check(database).await?;
    // After a lost answer, this call may have made the run: no other run has this holder and this record. A worker may
    // have claimed a submitted run since.
    let holder = matches!(owner, Owner::Worker(_)).then_some(holder);
    if answer.repeated && is_made(database, sealed, holder).await? {
        return Ok(());
    }
    Err(StoreError::Exists { run: record.run.clone() }.into())
}

async fn is_made(database: &Database, sealed: &SealedRun, holder: Option<&Holder>) -> Result<bool, Failure> {
    const MADE: &str = "SELECT 1 FROM waypost.runs r JOIN waypost.frozen f ON f.run = r.id
        JOIN waypost.scopes m ON m.run = r.id AND m.key = $2
        WHERE r.name = $1 AND f.digest = $3 AND ($5 IS NULL OR (m.token = $4 AND m.holder = $5))";
    let find = Statement::new(MADE)
        .text(sealed.record().run.as_str())
        .bytes(main_key())
        .bytes(sealed.digest().as_bytes().to_vec())
        .int(int(FIRST_TOKEN))
        .maybe_text(holder.map(holder_text));
    Ok(!database.run(&find).await?.rows.is_empty())
}

/// Returns the scopes of the first batch of a run, always with a main scope for the lease.
fn chains_of_new(records: &[Record]) -> Result<Vec<Chain>, StoreError> {
    let mut chains = of_new_run(records)?;
    if !chains.iter().any(|chain| chain.path.is_main()) {
        chains.push(Chain::empty_main());
    }
    Ok(chains)
}

/// Appends a batch under the lease with the token.
///
/// `acknowledged` returns the newest acknowledged seq of a scope under the lease of this store.
pub(crate) async fn append(
    database: &Database,
    written: Written<'_>,
    acknowledged: impl Fn(&ScopePath) -> Option<u64>,
) -> Result<Appended, Failure> {
    let Written { run, token, batch, .. } = written;
    // A contradictory batch is refused, unless applied before.
    let sound = match batch.check(run, token) {
        Ok(()) => chains(database, run, &batch.records).await,
        Err(error) => Err(error.into()),
    };
    let chains = match sound {
        Ok(chains) => chains,
        Err(Failure::Store(refusal)) => return judge(database, written, &acknowledged, Some(refusal)).await,
        Err(failure) => return Err(failure),
    };
    let append = append_one(written, &chains).unwrap_or_else(|| append_any(written, chains));
    let answer = match database.run(&append).await {
        Ok(answer) => answer,
        // A new scope of the batch has a row.
        Err(Failure::Taken) => return judge(database, written, &acknowledged, None).await,
        Err(failure) => return Err(failure),
    };
    let row = answer.rows.first().filter(|row| row.get(0));
    let Some(row) = row else {
        schema::check(database).await?;
        let answer_before = judge(database, written, &acknowledged, None).await?;
        // An earlier attempt of this call took effect.
        return Ok(if answer.repeated { Appended::Now } else { answer_before });
    };
    let put = count(row.get(1));
    assert!(put == batch.records.len() as u64, "with the fence, every record of the batch is written");
    Ok(Appended::Now)
}

/// Returns the statement for any batch.
fn append_any(written: Written<'_>, chains: Vec<Chain>) -> Statement {
    let Written { run, batch, durability, .. } = written;
    let consumed = batch.consumed.iter().map(|id| Some(signals::key_of(id))).collect();
    begin(append_text(false, durability), written, chains)
        .text(run.as_str())
        .int(i64::from(VERSION))
        .bytes_list(consumed)
        .int(int(batch.id.count))
        .maybe_text(batch.changed_at().map(time_text))
}

/// Returns the statement for one record of the main scope without an effect elsewhere; `None` for other batches.
fn append_one(written: Written<'_>, chains: &[Chain]) -> Option<Statement> {
    let Written { main, token, batch, encoded, durability, .. } = written;
    let ([chain], [record], [encoded]) = (chains, &*batch.records, encoded) else { return None };
    let is_for_queue = |summary: &Summary| summary.wake_at.is_some() || summary.status == RunStatus::Queued;
    let wakes = batch.release && batch.summary.as_ref().is_some_and(is_for_queue);
    if chain.is_new || !chain.path.is_main() || !batch.consumed.is_empty() || wakes {
        return None;
    }
    let bytes = |digest: Option<Digest>| digest.map(|digest| digest.as_bytes().to_vec());
    let header = record.header();
    let (codec, body) = encoded.body.columns(record.body_bytes().map(|body| body.as_slice()));
    let statement = Statement::new(append_text(true, durability))
        .int(main?)
        .int(int(token))
        .int(i64::from(VERSION))
        .int(int(chain.newest))
        .bytes(bytes(chain.tip_after()))
        .bool(chain.open)
        .int(int(chain.bodies))
        .int(int((encoded.header.len() + body.map_or(0, <[u8]>::len)) as u64))
        .int(int(chain.head))
        .bytes(bytes(chain.tip));
    let statement = with_summary(statement, batch.summary.as_ref())
        .bool(batch.release)
        .int(int(batch.id.count))
        .maybe_text(batch.changed_at().map(time_text));
    Some(
        statement
            .int(int(header.seq))
            .bytes(header.external.as_ref().map(|external| external.as_bytes().to_vec()))
            .int(header.about.map(int))
            .int(codec)
            .int(base_of(&encoded.body))
            .bytes(record.digest().as_bytes().to_vec())
            .bytes(encoded.header.clone())
            .bytes(body.map(<[u8]>::to_vec)),
    )
}

/// Returns the reason for a batch without effect: applied before, a lost lease, lost records of the store, or another
/// end of a chain.
async fn judge(
    database: &Database,
    written: Written<'_>,
    acknowledged: &impl Fn(&ScopePath) -> Option<u64>,
    refusal: Option<StoreError>,
) -> Result<Appended, Failure> {
    let Written { run, token, batch, .. } = written;
    let main = ScopePath::main();
    let is_holder = acknowledged(&main).is_some();
    let lease = match LeaseRow::get(database, run).await {
        Err(Failure::Store(StoreError::NotFound { .. })) if is_holder => {
            return Err(lost(database, CheckpointRef { run: run.clone(), scope: main, seq: 0 }, None).into());
        }
        lease => lease?,
    };
    if batch.id.token == lease.batch.0 && batch.id.count <= lease.batch.1 {
        return answered_before(database, batch).await;
    }
    if is_holder && lease.token < token {
        // A lagging standby took over, without this lease.
        let known = acknowledged(&main).unwrap_or_default();
        let (newest, _) = end_of(database, run, &main).await?;
        return Err(lost(
            database,
            CheckpointRef { run: run.clone(), scope: main, seq: known.max(newest + 1) },
            Some(newest),
        )
        .into());
    }
    if !(lease.held && lease.token == token) {
        return Err(lease.fenced(run, token).into());
    }
    // The first record at fault is named, whichever side finds the fault.
    let refused_at = match &refusal {
        Some(StoreError::Conflict { scope, seq, .. }) => Some((scope, *seq)),
        Some(_) => return Err(refusal.expect("the refusal was just matched").into()),
        None => None,
    };
    let mut begun = HashSet::new();
    for record in &batch.records {
        let header = record.header();
        if refused_at == Some((&header.scope, header.seq)) {
            break;
        }
        if !begun.insert(&header.scope) || header.reason == Reason::Repair {
            continue;
        }
        let (newest, tip) = end_of(database, run, &header.scope).await?;
        if let Some(known) = acknowledged(&header.scope).filter(|known| *known > newest) {
            let older = Some(newest).filter(|newest| *newest > 0);
            return Err(lost(
                database,
                CheckpointRef { run: run.clone(), scope: header.scope.clone(), seq: known },
                older,
            )
            .into());
        }
        if newest + 1 != header.seq {
            return Err(conflict(record, format!("the next record is {}", newest + 1)).into());
        }
        if tip != header.prev {
            return Err(conflict(record, mismatch(header.prev, tip)).into());
        }
    }
    if let Some(refusal) = refusal {
        return Err(refusal.into());
    }
    let first = batch.records.first().ok_or_else(|| StoreError::Invalid("an empty batch".to_owned()))?;
    Err(conflict(first, "another write to the scope came between".to_owned()).into())
}

/// Returns the end of a scope by its row: newest seq, and the digest of the newest record unless lost.
async fn end_of(
    database: &Database,
    run: &RunId,
    scope: &ScopePath,
) -> Result<(u64, Option<Digest>), Failure> {
    const END: &str = "SELECT s.newest, s.tip FROM waypost.runs r JOIN waypost.scopes s ON s.run = r.id
        WHERE r.name = $1 AND s.key = $2";
    let answer = database.run(&Statement::new(END).text(run.as_str()).bytes(key_of(scope))).await?;
    Ok(answer.rows.first().map_or((0, None), |row| (count(row.get(0)), digest_of(row.get(1)))))
}

/// Returns the error for a store without an acknowledged record; `older`: the newest record that is left.
fn lost(database: &Database, at: CheckpointRef, older: Option<u64>) -> StoreError {
    let place = format!("{}, which acknowledged the record before", database.name);
    let damage = Damage { run: at.run, scope: at.scope, seq: at.seq, place, flaw: Flaw::Missing };
    StoreError::of_damage(damage, older)
}

/// Acknowledges a repeated batch after a comparison of the last record: another batch could have the same id.
async fn answered_before(database: &Database, batch: &Batch) -> Result<Appended, Failure> {
    const FIND: &str = "SELECT 1 FROM waypost.runs r JOIN waypost.scopes s ON s.run = r.id AND s.key = $2
        JOIN waypost.records c ON c.scope = s.id AND c.seq = $3 AND c.digest = $4 WHERE r.name = $1";
    let Some(last) = batch.records.last() else { return Ok(Appended::Before) };
    let header = last.header();
    let find = Statement::new(FIND)
        .text(header.run.as_str())
        .bytes(key_of(&header.scope))
        .int(int(header.seq))
        .bytes(last.digest().as_bytes().to_vec());
    match database.run(&find).await?.rows.is_empty() {
        false => Ok(Appended::Before),
        true => Err(conflict(last, "another batch had the same id".to_owned()).into()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio_postgres::NoTls;
    use waypost_codec::encode;
    use waypost_testing::contract::block_on;
    use waypost_testing::postgres::{USER, cluster};
    use waypost_testing::records::{Links, holder, run_id, run_record, sealed};

    use super::*;
    use crate::database::settings::{PostgresOptions, Settings};

    /// Sends a batch during the uncommitted claim of another process. Returns whether the fence held, and the number of records after the claim.
    async fn race(name: &str, make: impl FnOnce(Written<'_>, Vec<Chain>) -> Statement) -> (bool, i64) {
        cluster().database(name, "SELECT 1");
        let url = cluster().connection(USER, name);
        let database = Database::new(Settings::parse(&url).unwrap(), PostgresOptions::default());
        schema::init(&database).await.unwrap();
        let run = run_id("r-1");
        let mut links = Links::of(&run);
        let (first, durability) = (links.step(), Durability::Sync);
        let (encoded, _) = encode::encode(&database.delta_cache, &first.records);
        let first = Written { run: &run, main: None, token: 1, batch: &first, encoded: &encoded, durability };
        create(&database, &sealed(run_record(&run)), (&holder("first"), Owner::Worker(1)), first)
            .await
            .unwrap();
        let (claimer, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
        tokio::spawn(async { drop(connection.await) });
        claimer.batch_execute("BEGIN; UPDATE waypost.scopes SET token = token + 1").await.unwrap();

        let batch = links.step();
        let (encoded, _) = encode::encode(&database.delta_cache, &batch.records);
        let chains = chains(&database, &run, &batch.records).await.unwrap();
        let main = scopes::find(&database, &run, &ScopePath::main()).await.unwrap().map(|scope| scope.id);
        let second = Written { run: &run, main, token: 1, batch: &batch, encoded: &encoded, durability };
        let append = make(second, chains);
        let claim = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            claimer.batch_execute("COMMIT").await.unwrap();
        };
        let (answer, ()) = tokio::join!(database.run(&append), claim);
        let holds = answer.unwrap().rows.first().is_some_and(|row| row.get(0));
        let count = claimer.query_one("SELECT count(*) FROM waypost.records", &[]).await.unwrap().get(0);
        (holds, count)
    }

    #[test]
    fn a_claim_in_flight_fences_a_batch() {
        block_on(async {
            assert_eq!(race("fenced", append_any).await, (false, 1));
            // A negative control: without the lock, the batch takes effect after the claim.
            let unlocked = |written: Written<'_>, chains| {
                let mut append = append_any(written, chains);
                append.sql = append.sql.replace(" FOR NO KEY UPDATE OF s", "").into();
                append
            };
            assert_eq!(race("unlocked", unlocked).await, (true, 2));
        });
    }

    #[test]
    fn a_claim_in_flight_fences_one_record() {
        let one = |written: Written<'_>, chains: Vec<Chain>| append_one(written, &chains).unwrap();
        block_on(async {
            assert_eq!(race("fenced_one", one).await, (false, 1));
            // A negative control: without the token, the batch takes effect after the claim.
            let unfenced = |written: Written<'_>, chains| {
                let mut append = one(written, chains);
                append.sql = append.sql.replace("s.token = $2", "s.token >= $2").into();
                append
            };
            assert_eq!(race("unfenced_one", unfenced).await, (true, 2));
        });
    }
}
