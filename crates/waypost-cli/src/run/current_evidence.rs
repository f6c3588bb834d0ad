//! Present evidence of a run, for read-only commands.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;
use waypost::engine::{AcceptAs, Acceptance, Answers, Engine, Look, ResumeOptions, Snapshot, TreatAs};
use waypost::plan::{Action, Cause, Decision, Plan};
use waypost::record::{Occasion, Record, Status};
use waypost::store::Store;
use waypost::{ScopePath, StepId};
use waypost_workflow::file::Work;
use waypost_workflow::mask::Mask;
use waypost_workflow::program::WorkflowProgram;

use crate::error::Error;
use crate::format::time;
use crate::run::bases;
use crate::run::definition::Chosen;
use crate::run::environment::{BASH, Local, person};
use crate::run::reference::step_on;

/// Checks the evidence of a run; does nothing for a workflow without evidence.
pub(crate) async fn look(
    store: &Arc<dyn Store>,
    snapshot: &Snapshot,
    chosen: &Chosen,
    occasion: Occasion,
) -> Result<Look, Error> {
    if !chosen.shape.has_evidence() {
        return Ok(Look::default());
    }
    let (engine, program) = engine_for_checks(store, snapshot, chosen)?;
    Ok(engine.look(&program, snapshot, occasion).await?)
}

/// Checks the evidence of finished steps at a checkpoint of the main scope, as a resume from there would.
pub(crate) async fn look_at(
    store: &Arc<dyn Store>,
    snapshot: &Snapshot,
    chosen: &Chosen,
    record: &Record,
) -> Result<Look, Error> {
    if !chosen.shape.has_evidence() {
        return Ok(Look::default());
    }
    let (engine, program) = engine_for_checks(store, snapshot, chosen)?;
    Ok(engine.look_at(&program, snapshot, (record, Occasion::Resume)).await?)
}

/// Corrects a plan by a dry run of the resume. The plan of a run without a possible resume is made from the records.
pub(crate) async fn correct(
    store: &Arc<dyn Store>,
    snapshot: &Snapshot,
    chosen: &Chosen,
    plan: &mut Plan,
) -> Result<(), Error> {
    let (engine, program) = engine_for_checks(store, snapshot, chosen)?;
    let options = || ResumeOptions { adopt: chosen.adoption.clone(), ..ResumeOptions::default() };
    // The `stops` of the plan say why a run cannot be resumed.
    if let Ok(dry_run) = engine.dry_run(&program, &snapshot.entry.summary.run, options).await {
        dry_run.correct(&program, plan);
        restart_services(chosen, plan);
    }
    Ok(())
}

/// Returns the steps of a run in doubt that need a decision of a person, after a check of the evidence. `None`: the plan
/// of the resume is unknown.
pub(crate) async fn undecided_steps(
    store: &Arc<dyn Store>,
    snapshot: &Snapshot,
) -> Result<Option<BTreeSet<(ScopePath, StepId)>>, Error> {
    let Ok(own) = Chosen::in_force(store.as_ref(), snapshot) else { return Ok(None) };
    let (engine, program) = engine_for_checks(store, snapshot, &own)?;
    let look = engine.look(&program, snapshot, Occasion::Resume).await?;
    let mut plan = own.plan(store.as_ref(), snapshot, Some(&look.verdicts), time::now()).await?;
    look.tell_in(&mut plan, &own.shape);
    let run = &snapshot.entry.summary.run;
    let Ok(dry_run) = engine.dry_run(&program, run, ResumeOptions::default).await else { return Ok(None) };
    dry_run.correct(&program, &mut plan);
    let is_undecided = |found: &&Decision| found.action == Action::Ask || found.cause == Cause::AskedInTurn;
    let undecided = plan
        .decisions
        .iter()
        .filter(is_undecided)
        .map(|question| (question.scope.clone(), question.step.clone()));
    Ok(Some(undecided.collect()))
}

/// Returns whether evidence settles all interrupted steps of a run in doubt, so that a resume asks no question.
pub(crate) async fn settles(store: &Arc<dyn Store>, snapshot: &Snapshot) -> Result<bool, Error> {
    let shape = Chosen::in_force(store.as_ref(), snapshot)?.shape;
    let has_interrupted = shape.has_evidence()
        && snapshot.heads.iter().any(|head| {
            let own = shape.of_scope(&head.record.header().scope).zip(head.record.position().ok());
            own.is_some_and(|(own, position)| {
                let mut started = position.frontier.iter().filter(|entry| entry.status == Status::Started);
                started.any(|entry| own.must_ask(&position, &entry.step))
            })
        });
    Ok(has_interrupted && undecided_steps(store, snapshot).await?.is_some_and(|steps| steps.is_empty()))
}

/// Plans the restart of each service with a step downstream that runs: services end with their session.
pub(crate) fn restart_services(chosen: &Chosen, plan: &mut Plan) {
    let runs =
        |decision: &&Decision| matches!(decision.action, Action::Run | Action::Retry | Action::Restart);
    let top = |decision: &Decision| {
        let above = std::iter::successors(Some(decision.scope.clone()), ScopePath::parent);
        match above.filter_map(|scope| scope.opened_by()).last() {
            Some((opener, _)) => chosen.shape.opener(&opener),
            None => chosen.shape.place(decision.step.as_str()),
        }
    };
    let running: BTreeSet<usize> = plan.decisions.iter().filter(runs).filter_map(top).collect();
    for decision in plan.decisions.iter_mut().filter(|decision| decision.action == Action::Reuse) {
        let step = decision.step.as_str();
        let is_service = chosen.workflow.step(step).is_some_and(|step| matches!(step.work, Work::Service(_)));
        let place = chosen.shape.place(step).filter(|_| is_service && decision.scope.is_main());
        if place.is_some_and(|place| !chosen.shape.downstream(&[place]).is_disjoint(&running)) {
            (decision.action, decision.cause) = (Action::Restart, Cause::ServiceEnded);
        }
    }
}

/// Returns the finished steps with failed, or with unknown, evidence, and their claims; `None` without any.
pub(crate) fn doubted(look: &Look, is_unknown: bool) -> Option<Vec<String>> {
    let meant =
        look.doubted.iter().filter(|found| matches!(found.cause, Cause::EvidenceUnknown(_)) == is_unknown);
    let named: Vec<String> = meant
        .map(|found| {
            let step = step_on(&found.scope, found.step.as_str());
            match &found.cause {
                Cause::EvidenceFailed(claims) | Cause::EvidenceUnknown(claims) => {
                    format!("step `{step}` ({})", claims.join(", "))
                }
                _ => format!("step `{step}`"),
            }
        })
        .collect();
    (!named.is_empty()).then_some(named)
}

/// Returns the mask for the secrets of a run, as far as their variables are set.
pub(crate) fn mask(store: &Arc<dyn Store>, snapshot: &Snapshot, chosen: &Chosen) -> Result<Mask, Error> {
    Ok(engine_for_checks(store, snapshot, chosen)?.1.mask().clone())
}

/// Creates engine and program for inspection only.
fn engine_for_checks(
    store: &Arc<dyn Store>,
    snapshot: &Snapshot,
    chosen: &Chosen,
) -> Result<(Engine, WorkflowProgram), Error> {
    let frozen = snapshot.entry.record.record();
    let base = bases::folder_of(store.as_ref(), frozen);
    let mut local = Local::detect()?;
    local.has_bash = frozen.settings.get(BASH).and_then(Value::as_bool).unwrap_or(local.has_bash);
    let environment = local.of_run(frozen.run.clone(), base, Arc::clone(store));
    let program = WorkflowProgram::for_inspection(chosen.workflow.clone(), environment)?;
    Ok((program.equip(Engine::new(Arc::clone(store))), program))
}

/// Pins the present evidence of a finished step, in one scope or in all; returns how many packs were pinned.
pub(crate) async fn accept(
    store: &Arc<dyn Store>,
    snapshot: &Snapshot,
    chosen: &Chosen,
    (scope, step): (Option<&ScopePath>, &StepId),
) -> Result<usize, Error> {
    let (engine, program) = engine_for_checks(store, snapshot, chosen)?;
    let by = person();
    let acceptance = Acceptance { scope, step, accept_as: AcceptAs::Pinned, by: Some(&by) };
    Ok(engine.accept_program(&program, &snapshot.entry.summary.run, acceptance).await?)
}

/// Marks finished steps with failed evidence as done, if the plan asks about them and the person says so.
/// Returns these steps.
pub(crate) async fn believe(
    store: &Arc<dyn Store>,
    snapshot: &Snapshot,
    chosen: &Chosen,
    (plan, answers): (&Plan, &Answers),
) -> Result<BTreeSet<(ScopePath, StepId)>, Error> {
    let held = held(plan, answers);
    if !held.is_empty() {
        let (engine, program) = engine_for_checks(store, snapshot, chosen)?;
        for (scope, step) in &held {
            let by = person();
            let acceptance =
                Acceptance { scope: Some(scope), step, accept_as: AcceptAs::Done, by: Some(&by) };
            engine.accept_program(&program, &snapshot.entry.summary.run, acceptance).await?;
        }
    }
    Ok(held)
}

/// Returns the steps with failed evidence that a person settles as done.
fn held(plan: &Plan, answers: &Answers) -> BTreeSet<(ScopePath, StepId)> {
    let is_held = |decision: &&Decision| {
        let is_done = answers.about(&decision.scope, &decision.step) == Some(TreatAs::Done);
        is_done && matches!(decision.cause, Cause::EvidenceFailed(_))
    };
    plan.questions().filter(is_held).map(|decision| (decision.scope.clone(), decision.step.clone())).collect()
}
