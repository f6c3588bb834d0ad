//! Comparison of counters with the counted records.

use waypost::id::RunId;

use crate::database::connect::Database;
use crate::database::error::Failure;
use crate::database::statement::Statement;
use crate::tables::{runs, scopes};

/// Returns the contradictions in the rows of a run, a sentence each.
pub(crate) async fn run(database: &Database, run: &RunId) -> Result<Vec<String>, Failure> {
    const COUNTS: &str = "SELECT s.path, s.records, count(r.seq), s.bodies, count(r.body), s.newest,
            coalesce(max(r.seq), 0), s.bytes,
            coalesce(sum(length(r.header) + coalesce(length(r.body), 0)), 0)::bigint
        FROM waypost.scopes s LEFT JOIN waypost.records r ON r.scope = s.id WHERE s.run = $1
        GROUP BY s.id ORDER BY s.id";
    let id = scopes::run_id(database, run).await?;
    let mut found = Vec::new();
    if let Err(Failure::Store(error)) = runs::frozen(database, run).await {
        found.push(error.to_string());
    }
    for row in database.run(&Statement::new(COUNTS).int(id)).await?.rows {
        let path: &str = row.get(0);
        for (what, at) in [("records", 1), ("bodies", 3), ("bytes", 7)] {
            let (stored, counted): (i64, i64) = (row.get(at), row.get(at + 1));
            if stored != counted {
                found.push(format!("scope {path} has {counted} {what}, its row counts {stored}"));
            }
        }
        let (newest, last): (i64, i64) = (row.get(5), row.get(6));
        if last > newest {
            found.push(format!("scope {path} has record {last}, its row ends at {newest}"));
        }
    }
    Ok(found)
}
