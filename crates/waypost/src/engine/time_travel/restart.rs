//! Restart of a run: on the same chain, from the first step; all earlier results are out of force.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::id::{RunId, ScopePath};
use crate::plan::shape::Shape;
use crate::record::{Position, Reason, Record};
use crate::store::{Damage, Lease, Page, Scan, ScanOrder, StoreExt as _};

use super::rollback::epochs;
use crate::engine::chain::Chain;
use crate::engine::inspect::changed_at;
use crate::engine::manual;
use crate::engine::options::merge;
use crate::engine::resume::begin::{first_position, manual_draft};
use crate::engine::resume::definition::definition_of_restart;
use crate::engine::resume::trust::is_step_on;
use crate::engine::scope::child_heads::skip_missing;
use crate::engine::scope::{MAIN, Scope};
use crate::engine::session::Session;
use crate::engine::walk::invalidate::{ReusePolicy, reenter};
use crate::engine::{Engine, Program, ResumeFrom, ResumeOptions, RunError};

/// Makes the session that restarts a run with a state. The records stay. The configuration in force stays too,
/// merged with the options.
pub(crate) async fn restarted<'a, P: Program>(
    engine: &'a Engine,
    program: &'a P,
    lease: &Lease,
    mut state: P::State,
    options: ResumeOptions<P::State>,
) -> Result<Session<'a, P>, RunError> {
    let run = lease.run();
    manual::refuse_all(run, &options.edit_scopes, "the run is restarted, and opens the scope again")?;
    let report = (options.adopt.as_ref(), options.on_change);
    let adopt = definition_of_restart(engine, lease, program.shape(), report).await?;
    if let Some(edit) = options.edit {
        edit.apply(&mut state, || format!("run {run}"))?;
    }
    if let Some(validate) = options.validate {
        validate.check(&state, || format!("run {run}"))?;
    }
    let NewestRecords { newest, damaged } = ends(engine, run).await?;
    let highest = highest_seq(engine, run).await;
    let config = Config::in_force(engine, run).await;
    for damage in &damaged {
        engine.store.quarantine(lease, damage).await?;
    }
    skip_missing(engine, lease).await?;
    let seq = newest.as_ref().map_or(0, |record| record.header().seq);
    let seqs = damaged.iter().map(|damage| damage.seq).chain([seq]);
    let next = seqs.max().unwrap_or(0).max(highest) + 1;
    let chain = Chain {
        run: run.clone(),
        scope: ScopePath::main(),
        token: lease.token(),
        next,
        prev: newest.as_ref().map(Record::digest),
        basis: Some(0),
        repair: next != seq + 1 || newest.is_none(),
        root: None,
        // Without a readable record, the run was idle until now.
        idle_since: Some(
            newest.as_ref().map_or_else(|| engine.clock.now(), |record| record.header().created_at),
        ),
        resume: newest.as_ref().map_or(0, |record| record.header().resume) + 1,
        repeated: None,
    };
    let epoch = epochs(engine, run, &ScopePath::main()).await? + 1;
    let mut position = first_position(program.shape(), epoch);
    let answers = options.on_doubt.answers();
    let began_with = options.adopt.as_ref().map_or(program.shape(), |adoption| &adoption.before);
    if let Some(before) = newest_position(engine, run).await.filter(|_| !began_with.is_routed()) {
        // A person is asked about the effects of earlier executions.
        position.reusable =
            reenter(began_with, before, ReusePolicy::excluded(!answers.retries_all())).reusable;
        position.reusable.retain(|step, _| program.shape().place(step.as_str()).is_some());
    }
    if !program.shape().is_routed() {
        // No result of an earlier child is reused.
        let openers = program.shape().steps().iter().filter(|step| step.opens());
        position.rerun_whole.extend(openers.map(|step| step.id.clone()));
    }
    let mut main = Scope::new(chain, program.shape(), position, state);
    main.reason = Reason::Redo;
    main.position.epoch_max = epoch;
    let config = config.laid_under(options.config, &mut main);
    let is_written = !main.drafts.is_empty();
    let mut session = Session::new(engine, program, main, options.session)?;
    if is_written {
        session.mark_dirty(MAIN);
    }
    session.answers = answers;
    session.repaired = damaged;
    session.adopt = adopt;
    session.config = Arc::new(config);
    // A damaged run record has lost its base folder too.
    if let Ok(entry) = engine.store.run(run).await {
        session.site = Arc::new(engine.site(entry.record.record()));
    }
    Ok(session)
}

/// Refuses a start point, because a restart has none.
///
/// # Errors
/// - [`RunError::InvalidStep`], [`RunError::UnknownStep`]: the step does not exist.
/// - [`RunError::NoState`]: any other start point.
pub(crate) fn refuse_from(run: &RunId, shape: &Shape, from: Option<&ResumeFrom>) -> Result<(), RunError> {
    match from {
        None => Ok(()),
        Some(ResumeFrom::Unknown(name)) => Err(RunError::UnknownStep(name.clone())),
        Some(ResumeFrom::Step(step)) if shape.place(step.as_str()).is_none() => {
            Err(RunError::InvalidStep(step.clone()))
        }
        Some(ResumeFrom::StepOn(scope, step)) if !is_step_on(shape, scope, step) => {
            Err(RunError::InvalidStep(step.clone()))
        }
        Some(_) => {
            let why = "restarted from its first step, with the given state".to_owned();
            Err(RunError::NoState { at: format!("run {run}"), why })
        }
    }
}

/// The newest records of the main scope.
struct NewestRecords {
    /// The newest record with a sound header.
    newest: Option<Record>,
    /// The damaged records among the newest.
    damaged: Vec<Damage>,
}

async fn ends(engine: &Engine, run: &RunId) -> Result<NewestRecords, RunError> {
    let mut scan =
        Scan { scope: Some(ScopePath::main()), order: ScanOrder::NewestFirst, limit: 1, ..Scan::of(run) };
    let mut found = engine.store.scan(&scan).await?;
    // More records may be damaged than a page lists.
    while found.records.is_empty() && found.next.is_some() {
        scan.cursor = found.next.take();
        let next = engine.store.scan(&scan).await?;
        found.records = next.records;
        found.damaged.extend(next.damaged);
        found.next = next.next;
    }
    Ok(NewestRecords { newest: found.records.into_iter().next(), damaged: found.damaged })
}

/// Returns the highest seq ever used in the main scope, quarantine included; 0 without a head.
async fn highest_seq(engine: &Engine, run: &RunId) -> u64 {
    let heads = engine.store.heads(run, &Page { limit: 1, ..Page::default() }).await;
    let heads = heads.map(|found| found.heads).unwrap_or_default();
    let main = heads.iter().find(|head| head.record.header().scope.is_main());
    main.map_or(0, |head| head.next - 1)
}

/// The configuration of a run, as far as readable.
#[derive(Debug, Default)]
struct Config {
    map: Map<String, Value>,
    /// The record with the configuration, if not the run record.
    at: Option<u64>,
}

impl Config {
    /// Reads the configuration in force: from the record named by the newest sound record, or from the run
    /// record.
    async fn in_force(engine: &Engine, run: &RunId) -> Self {
        let at = newest_position(engine, run).await.and_then(|position| position.config);
        if let Some(seq) = at
            && let Ok(changed) = changed_at(engine.store.as_ref(), run, seq).await
        {
            return Self { map: changed.config.unwrap_or_default(), at };
        }
        match engine.store.run(run).await {
            Ok(entry) => Self { map: entry.record.record().config.clone(), at: None },
            // No configuration is left.
            Err(_) => Self::default(),
        }
    }

    /// Returns the configuration after a merge with `over`, and drafts the change in a new scope.
    fn laid_under<S>(self, over: Map<String, Value>, main: &mut Scope<'_, S>) -> Map<String, Value> {
        let mut config = self.map.clone();
        merge(&mut config, over);
        main.position.config = self.at;
        if config != self.map {
            main.position.config = Some(main.seq_of_next_draft());
            let mut draft = manual_draft();
            draft.config = Some(config.clone());
            main.drafts.push(draft);
        }
        config
    }
}

/// Returns the position of the newest sound record of the main scope.
async fn newest_position(engine: &Engine, run: &RunId) -> Option<Position> {
    let store = engine.store.as_ref();
    let main = ScopePath::main();
    let record = match store.newest(run, &main).await {
        Ok(record) => record,
        Err(_) => {
            let heads = store.heads(run, &Page { limit: 1, ..Page::default() }).await.ok()?.heads;
            heads.into_iter().map(|head| head.record).find(|record| record.header().scope == main)?
        }
    };
    record.position().ok()
}
