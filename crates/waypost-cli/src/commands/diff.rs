//! `waypost diff`: compares the states of two checkpoints.

use std::collections::BTreeSet;
use std::sync::Arc;

use imara_diff::{Algorithm, Diff, InternedInput};
use serde_json::Value;
use unicode_width::UnicodeWidthStr as _;
use waypost::CheckpointRef;
use waypost::diff::Change;
use waypost::engine::{Engine, RunError};
use waypost::path::Segment;

use super::Context;
use super::rollback_fork::checkpoint;
use crate::cli::DiffArgs;
use crate::error::Error;
use crate::exit::Exit;
use crate::output::shown;
use crate::run::definition::names;
use crate::store_location::Access;
use crate::view::{DiffView, VERSION};

use by_step::{StateAt, StateValue, StateValues, values};

mod by_step;

/// Widest pair of values on the line of their path: with a path, a line of a usual terminal.
const INLINE_COLUMNS_MAX: usize = 60;
/// Most lines of a value or of a line diff: `--json` has all.
const LINES_MAX: usize = 40;

pub(crate) async fn diff(context: &Context, args: DiffArgs) -> Result<Exit, Error> {
    let store = context.store(None, Access::Read)?;
    let before = checkpoint(store.as_ref(), &args.before).await?;
    let after = checkpoint(store.as_ref(), &args.after).await?;
    let engine = Engine::new(Arc::clone(&store));
    let (old, new) = (state(&engine, &before).await?, state(&engine, &after).await?);
    let differences = waypost::diff(&old, &new);
    if context.output.json {
        let (before, after) = (before.to_string(), after.to_string());
        context.output.document(&DiffView { v: VERSION, before, after, differences })?;
        return Ok(Exit::Done);
    }
    let (old_names, new_names) =
        (names(store.as_ref(), &before.run).await, names(store.as_ref(), &after.run).await);
    let old_values = values(&old, &StateAt { scope: &before.scope, names: &old_names });
    let new_values = values(&new, &StateAt { scope: &after.scope, names: &new_names });
    let lines: Vec<String> = match old_values.zip(new_values) {
        Some((old, new)) => by_path(&old, &new),
        None => differences.iter().map(|found| told(&found.path.to_string(), found.change)).collect(),
    };
    if lines.is_empty() {
        context.output.answer(&format!("The states of {before} and {after} are equal."))?;
    }
    lines.iter().try_for_each(|line| context.output.answer(line))?;
    Ok(Exit::Done)
}

/// Formats the differences of two states of a workflow, by path.
fn by_path(old: &StateValues, new: &StateValues) -> Vec<String> {
    let mut lines = Vec::new();
    for path in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
        match (old.get(path), new.get(path)) {
            (before, after) if before == after => {}
            (None, Some(StateValue::Status(after))) => lines.push(format!("+ {}: {after}", shown(path))),
            (Some(StateValue::Status(before)), None) => lines.push(format!("- {}: {before}", shown(path))),
            (Some(StateValue::Status(before)), Some(StateValue::Status(after))) => {
                lines.push(format!("~ {}: {before} -> {after}", shown(path)));
            }
            (None, Some(StateValue::Data(after))) => lines.push(told(path, Change::Added { after })),
            (Some(StateValue::Data(before)), None) => lines.push(told(path, Change::Removed { before })),
            (Some(StateValue::Data(before)), Some(StateValue::Data(after))) => {
                let told = |found: &waypost::diff::Difference<'_>| {
                    let rest = match found.path.segments() {
                        [] => String::new(),
                        [Segment::Index(_), ..] => found.path.to_string(),
                        _ => format!(".{}", found.path),
                    };
                    told(&format!("{path}{rest}"), found.change)
                };
                lines.extend(waypost::diff(before, after).iter().map(told));
            }
            _ => {}
        }
    }
    lines
}

/// Formats a difference: short values on a line, longer ones as lines.
fn told(path: &str, change: Change<'_>) -> String {
    let (sign, values) = match change {
        Change::Added { after } => ('+', vec![after]),
        Change::Removed { before } => ('-', vec![before]),
        Change::Changed { before, after } => ('~', vec![before, after]),
    };
    let path = shown(path);
    let texts: Vec<String> = values.iter().map(ToString::to_string).collect();
    let inline = texts.join(" -> ");
    if inline.width() <= INLINE_COLUMNS_MAX {
        return format!("{sign} {path}: {}", shown(&inline));
    }
    let lines: Vec<Vec<String>> = values.into_iter().map(lines_of).collect();
    let mut lines: Vec<String> = match lines.as_slice() {
        // The lines are equal, and their ends or types differ.
        [before, after] if before == after => return format!("{sign} {path}: {}", shown(&inline)),
        [before, after] => changed_lines(before, after),
        lines => lines.concat().iter().map(|line| format!("  {sign} {line}")).collect(),
    };
    let more = lines.len().saturating_sub(LINES_MAX);
    if more > 0 {
        lines.truncate(LINES_MAX);
        lines.push(format!("  ... {more} more lines (`--json` has all)"));
    }
    format!("{sign} {path}:\n{}", lines.join("\n"))
}

/// Returns the lines of a text, or of a value as JSON.
fn lines_of(value: &Value) -> Vec<String> {
    let text = value.as_str().map_or_else(|| format!("{value:#}"), ToOwned::to_owned);
    text.lines().map(|line| shown(line).into_owned()).collect()
}

/// Returns the removed and added lines, in order.
fn changed_lines(before: &[String], after: &[String]) -> Vec<String> {
    let mut input: InternedInput<String> = InternedInput::default();
    input.update_before(before.iter().cloned());
    input.update_after(after.iter().cloned());
    let mut lines = Vec::new();
    for hunk in Diff::compute(Algorithm::Histogram, &input).hunks() {
        let of = |lines: &[String], range: std::ops::Range<u32>| {
            lines[range.start as usize..range.end as usize].to_vec()
        };
        lines.extend(of(before, hunk.before).into_iter().map(|line| format!("  - {line}")));
        lines.extend(of(after, hunk.after).into_iter().map(|line| format!("  + {line}")));
    }
    lines
}

async fn state(engine: &Engine, at: &CheckpointRef) -> Result<Value, Error> {
    let record = engine.load_with_state(at).await?;
    serde_json::from_slice(record.state_bytes().unwrap_or_default()).map_err(|_| {
        let why = "it is not JSON: another program wrote it".to_owned();
        RunError::NoState { at: at.to_string(), why }.into()
    })
}
