//! Formats the content of a store as text, so that tests can compare stores and show differences.

use std::fmt::Write as _;

use waypost::RunId;
use waypost::record::{Record, SealedRun};
use waypost::store::{Damage, Head, Page, RunQuery, RunSummary, Scan, ScanOrder, Scanned, Store, StoreError};

/// Page size of a picture, small enough that short histories use cursors.
const PAGE_ITEMS: usize = 3;

/// Returns the whole content of a run as text: summary, frozen record, signals, heads, and each loaded
/// record.
///
/// Two stores with the same calls have equal pictures. Errors appear by kind.
pub async fn picture(store: &dyn Store, run: &RunId) -> String {
    let mut text = match store.run(run).await {
        Ok(entry) => format!("{}\n{}\n", of_summary(&entry.summary), of_run(&entry.record)),
        Err(error) => format!("run: {}\n", kind(&error)),
    };
    match store.signals(run).await {
        Ok(signals) => signals.iter().for_each(|signal| {
            let _ = writeln!(text, "signal {} {:?}", signal.id, signal.kind);
        }),
        Err(error) => {
            let _ = writeln!(text, "signals: {}", kind(&error));
        }
    }
    match heads(store, run, PAGE_ITEMS).await {
        Ok(heads) => heads.iter().for_each(|head| {
            let _ = writeln!(text, "{}", of_head(head));
        }),
        Err(error) => {
            let _ = writeln!(text, "heads: {}", kind(&error));
        }
    }
    match scan_all(store, Scan { limit: PAGE_ITEMS, ..Scan::of(run) }).await {
        Ok(found) => {
            for damage in &found.damaged {
                let _ = writeln!(text, "damaged {}", of_damage(damage));
            }
            for record in &found.records {
                let header = record.header();
                let loaded = match store.load(run, &header.scope, header.seq).await {
                    Ok(loaded) if *loaded.header_bytes() == *record.header_bytes() => of_record(&loaded),
                    Ok(loaded) => format!("scanned {} but loaded {}", of_record(record), of_record(&loaded)),
                    Err(error) => format!("{} load: {}", header.reference(), kind(&error)),
                };
                let _ = writeln!(text, "{loaded}");
            }
        }
        Err(error) => {
            let _ = writeln!(text, "scan: {}", kind(&error));
        }
    }
    text
}

/// Returns the run list of a store, newest first.
pub async fn list(store: &dyn Store, query: &RunQuery) -> Result<Vec<RunSummary>, StoreError> {
    let mut runs = Vec::new();
    let mut query = query.clone();
    loop {
        let page = store.runs(&query).await?;
        assert!(page.runs.len() <= query.limit(), "a page has at most as many as asked for");
        runs.extend(page.runs);
        match page.next {
            Some(cursor) => query.cursor = Some(cursor),
            None => return Ok(runs),
        }
    }
}

/// Returns all heads of a run, read in pages of `limit`.
///
/// # Errors
/// As [`Store::heads`].
pub async fn heads(store: &dyn Store, run: &RunId, limit: usize) -> Result<Vec<Head>, StoreError> {
    let mut heads = Vec::new();
    let mut page = Page { cursor: None, limit };
    loop {
        let found = store.heads(run, &page).await?;
        assert!(found.heads.len() <= limit, "a page has at most as many as asked for");
        heads.extend(found.heads);
        match found.next {
            Some(cursor) => page.cursor = Some(cursor),
            None => return Ok(heads),
        }
    }
}

/// Reads all pages of a scan.
///
/// # Errors
/// As [`Store::scan`].
pub async fn scan_all(store: &dyn Store, mut scan: Scan) -> Result<Scanned, StoreError> {
    let mut all = Scanned { records: Vec::new(), damaged: Vec::new(), next: None };
    loop {
        let page = store.scan(&scan).await?;
        assert!(page.records.len() <= scan.limit, "a page has at most as many as asked for");
        let bare = page.records.iter().all(|record| record.body_bytes().is_none());
        assert!(bare, "a scan returns records without bodies");
        all.records.extend(page.records);
        all.damaged.extend(page.damaged);
        match page.next {
            Some(cursor) => scan.cursor = Some(cursor),
            None => return Ok(all),
        }
    }
}

/// Formats the result of a scan: references in order, then damaged records.
pub fn of_scan(found: &Scanned) -> String {
    let records = found.records.iter().map(|record| record.header().reference().to_string());
    let damaged = found.damaged.iter().map(|damage| format!("damaged {}", of_damage(damage)));
    records.chain(damaged).collect::<Vec<_>>().join("\n")
}

/// Returns a scan of all records, newest first.
pub fn newest_first(run: &RunId) -> Scan {
    Scan { order: ScanOrder::NewestFirst, ..Scan::of(run) }
}

/// Formats an error by its variant and the values that are equal in all stores.
pub fn kind(error: &StoreError) -> String {
    match error {
        StoreError::NotFound { .. } => "not found".to_owned(),
        StoreError::Exists { run } => format!("{run} exists"),
        StoreError::Held { run, holder, .. } => {
            format!("{run} is held by {}", holder.as_ref().map_or("another process", |holder| &holder.what))
        }
        StoreError::Fenced { token, .. } => format!("fenced {token}"),
        StoreError::Conflict { scope, seq, .. } => format!("conflict {scope}@{seq}"),
        StoreError::Damaged { damage, older } => format!("damaged {} older {older:?}", of_damage(damage)),
        StoreError::Version { found, .. } => format!("version {found}"),
        StoreError::Invalid(_) => "invalid".to_owned(),
        StoreError::Closed(_) => "closed".to_owned(),
        other => format!("unforeseen: {other:?}"),
    }
}

fn of_damage(damage: &Damage) -> String {
    format!("{}/{}@{}", damage.run, damage.scope, damage.seq)
}

fn of_run(run: &SealedRun) -> String {
    format!("record {}", run.digest())
}

fn of_head(head: &Head) -> String {
    let damaged: Vec<_> = head.damaged.iter().map(of_damage).collect();
    format!("head {} next {} damaged {damaged:?}", of_record(&head.record), head.next)
}

fn of_record(record: &Record) -> String {
    let body = record.body_bytes().map(|body| waypost::Digest::of(body));
    let body = body.map_or_else(|| "none".to_owned(), |digest| digest.to_string());
    format!("{} {} body {body}", record.header().reference(), record.digest())
}

/// Formats a summary without byte sizes, which differ between stores.
pub fn of_summary(run: &RunSummary) -> String {
    let RunSummary { summary, .. } = run;
    format!(
        "run {} of {} {:?} {} doubtful {} step {:?} progress {}/{} wake {:?} lost {} labels {:?} created {} \
         updated {} checkpoints {} held by {:?}",
        run.run,
        run.workflow,
        run.path,
        run.status.name(),
        summary.doubtful,
        summary.step,
        summary.progress.done,
        summary.progress.total,
        summary.wake_at,
        summary.lost,
        run.labels,
        run.created_at,
        run.updated_at,
        run.checkpoints,
        run.holder.as_ref().map(|holder| &holder.what),
    )
}
