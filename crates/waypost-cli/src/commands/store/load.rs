//! `waypost store stats`: the load of a store, for its operator.

use std::time::Duration;

use waypost::store::RunQuery;

use super::super::{Context, stats};
use super::{postgres_url, schema};
use crate::error::Error;
use crate::exit::Exit;
use crate::format::{size, time};
use crate::store_location::{Access, postgres};
use crate::view::{LeaseStatsView, ServerStatsView, StatsView, StoreStatsView, TableStatsView, VERSION};

pub(super) async fn stats(context: &Context) -> Result<Exit, Error> {
    let store = context.store(None, Access::Read)?;
    let schema = schema(context, &store.to_string()).await?;
    let StatsView { store, runs, by_status, bytes, database_bytes, .. } =
        stats::counted(context, store.as_ref(), RunQuery::default()).await?;
    let server = match postgres_url(context) {
        Some(url) => Some(postgres::statistics(&url).await?),
        None => None,
    };
    let table_bytes = |server: &ServerStatsView| server.tables.iter().map(|table| table.bytes).sum();
    let database_bytes = database_bytes.or(server.as_ref().map(table_bytes));
    let view = StoreStatsView { v: VERSION, store, schema, runs, by_status, bytes, database_bytes, server };
    if context.output.json {
        context.output.document(&view)?;
    } else {
        context.output.answer(&told(context, &view))?;
    }
    Ok(Exit::Done)
}

fn told(context: &Context, view: &StoreStatsView) -> String {
    let version = view.schema.map(|version| format!(", version {version}")).unwrap_or_default();
    let statuses = match view.runs {
        0 => String::new(),
        _ => format!(" ({})", stats::statuses(&view.by_status)),
    };
    let mut rows = vec![
        ("store", format!("{}{version}", crate::output::shown(&view.store))),
        ("runs", format!("{}{statuses}", view.runs)),
        ("size", size::shown(view.bytes)),
        ("database", view.database_bytes.map(size::shown).unwrap_or_default()),
    ];
    if let Some(server) = &view.server {
        let (queue, connections) = (&server.queue, &server.connections);
        let oldest = match queue.ready {
            0 => String::new(),
            _ => format!(" (the oldest for {})", time::lasted(Duration::from_millis(queue.oldest_ms))),
        };
        let (lacking, later) = (queue.lacking, queue.later);
        rows.extend([
            ("queue", format!("{} ready{oldest}, {later} later, {lacking} lacking", queue.ready)),
            ("steps", format!("{} ready for another worker", queue.steps)),
            (
                "connections",
                format!(
                    "{} of {}, {} to this database",
                    connections.used, connections.max, connections.database
                ),
            ),
        ]);
    }
    let mut text = String::new();
    for (name, value) in rows.iter().filter(|(_, value)| !value.is_empty()) {
        text.push_str(&format!("{name:<12} {}\n", context.output.wrapped(value, 13, 13)));
    }
    let Some(server) = &view.server else { return text };
    let lease = |lease: &LeaseStatsView| {
        let process = lease.pid.zip(lease.host.as_ref()).map(|(pid, host)| format!("{host} (process {pid})"));
        vec![
            process.unwrap_or_else(|| "unknown".to_owned()),
            lease.since.map(time::utc).unwrap_or_default(),
            lease.until.map_or("expired".to_owned(), |until| format!("until {}", time::utc(until))),
            lease.runs.to_string(),
            lease.steps.to_string(),
        ]
    };
    let table = |table: &TableStatsView| {
        vec![
            table.table.clone(),
            size::shown(table.bytes),
            table.rows.to_string(),
            table.dead_rows.to_string(),
            table.vacuumed_at.map_or("never".to_owned(), |at| time::ago(at, context.now())),
        ]
    };
    let leases: Vec<_> = server.leases.iter().map(lease).collect();
    let tables: Vec<_> = server.tables.iter().map(table).collect();
    if !leases.is_empty() {
        let heading = ["WORKER", "SINCE", "LEASE", "RUNS", "STEPS"];
        text.push_str(&format!("\n{}\n", context.output.table(&heading, &leases)));
    }
    let heading = ["TABLE", "SIZE", "ROWS", "DEAD", "VACUUMED"];
    format!("{text}\n{}", context.output.table(&heading, &tables))
}
