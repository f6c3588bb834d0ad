//! `waypost checkpoints`: the records of a run, each read and checked.

use waypost::engine::MARK;
use waypost::record::Record;
use waypost::store::{Damage, Scan, Store, StoreError};

use super::Context;
use crate::cli::CheckpointsArgs;
use crate::error::Error;
use crate::exit::Exit;
use crate::format::time;
use crate::output::Output;
use crate::run::definition::names;
use crate::run::reference::{damaged_reference, scope};
use crate::view::step_names::StepNames;
use crate::view::{CheckpointView, CheckpointsView, VERSION};

pub(crate) async fn checkpoints(context: &Context, args: CheckpointsArgs) -> Result<Exit, Error> {
    let (store, run) = context.find(args.run.as_deref()).await?;
    let scope_path = match &args.scope {
        Some(path) => Some(scope(store.as_ref(), &run, path).await?),
        None => None,
    };
    let scan = Scan { scope: scope_path, cursor: args.after, limit: args.limit as usize, ..Scan::of(&run) };
    let found = store.scan(&scan).await?;
    let mut checkpoints = Vec::with_capacity(found.records.len());
    for record in &found.records {
        checkpoints.push(checked(store.as_ref(), record).await?);
    }
    insert_damaged(&mut checkpoints, &found.damaged);
    if context.output.json {
        context.output.document(&CheckpointsView { v: VERSION, checkpoints, next: found.next })?;
        return Ok(Exit::Done);
    }
    context.output.answer(&table(&context.output, &checkpoints, &names(store.as_ref(), &run).await))?;
    if found.next.is_some() {
        context.output.note("There are more checkpoints: use --limit and --after.");
    }
    Ok(Exit::Done)
}

/// Returns the view of a record, after its body was read and checked, too.
pub(crate) async fn checked(store: &dyn Store, record: &Record) -> Result<CheckpointView, Error> {
    let header = record.header();
    let mut view = of_record(record);
    match store.load(&header.run, &header.scope, header.seq).await {
        Ok(loaded) if has_lost_state(&loaded) => {
            view.bytes = Some(record.header_bytes().len() as u64);
            view.state = Some(false);
        }
        Ok(_) => {}
        Err(StoreError::Damaged { damage, .. }) => {
            view.sound = false;
            view.error = Some(damage.flaw.to_string());
        }
        Err(error) => return Err(error.into()),
    }
    Ok(view)
}

/// Returns whether the state of a fully read record was dropped.
pub(crate) fn has_lost_state(record: &Record) -> bool {
    record.header().body.is_some() && record.body_bytes().is_none()
}

/// Returns the view of a record with a sound header.
pub(crate) fn of_record(record: &Record) -> CheckpointView {
    let header = record.header();
    CheckpointView {
        reference: header.reference().to_string(),
        scope: header.scope.to_string(),
        seq: header.seq,
        phase: Some(header.phase.name()),
        reason: Some(header.reason),
        step: header.step.as_ref().map(ToString::to_string),
        attempt: Some(header.at.attempt).filter(|attempt| *attempt > 0),
        iteration: header.at.iteration.clone(),
        epoch: Some(header.at.epoch),
        started: header.started.iter().map(|start| start.step.to_string()).collect(),
        created_at: Some(header.created_at),
        bytes: Some(record.bytes()),
        digest: Some(record.digest().to_string()),
        prev: header.prev.map(|digest| digest.to_string()),
        basis: header.basis(),
        sound: true,
        state: None,
        label: header.labels.get(MARK).cloned(),
        error: None,
    }
}

fn of_damage(damage: &Damage) -> CheckpointView {
    CheckpointView {
        reference: damaged_reference(&damage.run, damage).to_string(),
        scope: damage.scope.to_string(),
        seq: damage.seq,
        phase: None,
        reason: None,
        step: None,
        attempt: None,
        iteration: Vec::new(),
        epoch: None,
        started: Vec::new(),
        created_at: None,
        bytes: None,
        digest: None,
        prev: None,
        basis: None,
        sound: false,
        state: None,
        label: None,
        error: Some(damage.flaw.to_string()),
    }
}

/// Inserts damaged records by scope and seq.
fn insert_damaged(views: &mut Vec<CheckpointView>, damaged: &[Damage]) {
    for damage in damaged {
        let view = of_damage(damage);
        let after = views.iter().rposition(|other| other.scope == view.scope && other.seq < view.seq);
        let first = views.iter().position(|other| other.scope == view.scope);
        let place = after.map(|place| place + 1).or(first).unwrap_or(views.len());
        views.insert(place, view);
    }
}

/// Formats checkpoints as a table; if the terminal is too narrow, as a line each, without time and size.
pub(crate) fn history(output: &Output, views: &[CheckpointView], names: &StepNames) -> String {
    if !output.is_narrow() {
        return table(output, views, names);
    }
    let line = |view: &CheckpointView| {
        let mut line = names.plain(&view.reference);
        let starts = (view.phase != Some("started") && !view.started.is_empty())
            .then(|| format!(", starts {}", view.started.join(", ")));
        for part in [view.phase, view.step.as_deref()].into_iter().flatten() {
            line.push_str(&format!(" {part}"));
        }
        let damaged = if view.sound { "" } else { ", DAMAGED" };
        format!("{line}{}{damaged}", starts.unwrap_or_default())
    };
    views.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Formats checkpoints as a table.
pub(crate) fn table(output: &Output, views: &[CheckpointView], names: &StepNames) -> String {
    let row = |view: &CheckpointView| {
        let attempt = view.attempt.filter(|attempt| *attempt > 1).map(|attempt| format!(" ({attempt})"));
        vec![
            names.plain(&view.reference),
            view.created_at.map(time::utc).unwrap_or_default(),
            view.phase.unwrap_or_default().to_owned(),
            match (&view.step, &view.label) {
                (Some(step), _) => format!("{step}{}", attempt.unwrap_or_default()),
                (None, Some(label)) => format!("label: {label}"),
                (None, None) => String::new(),
            },
            view.started.join(", "),
            view.bytes.map(|bytes| bytes.to_string()).unwrap_or_default(),
            match (view.sound, view.state) {
                (false, _) => "DAMAGED".to_owned(),
                (true, Some(false)) => "sound, no state".to_owned(),
                (true, _) => "sound".to_owned(),
            },
        ]
    };
    let rows: Vec<Vec<String>> = views.iter().map(row).collect();
    output.table(&["CHECKPOINT", "TIME", "PHASE", "STEP", "STARTS", "BYTES", "SOUND"], &rows)
}
