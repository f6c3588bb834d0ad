//! `waypost resume --dry-run`: what a resume with these options would do.
//!
//! Where it goes on from another place than where the run stands, the position there is made as the engine makes it,
//! and planned from. What only the work itself shows, it says plainly that it does not tell.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use waypost::engine::{ResumeFrom, RunError, Snapshot, opened_again};
use waypost::plan::{Action, Decision, Effective, Plan, Verdicts, plan};
use waypost::record::{End, FrontierEntry, Occasion, Position, Record, Status, WaitKind};
use waypost::shape::{Shape, Unfinished};
use waypost::store::{Store, StoreExt as _};
use waypost::{BranchPath, RunId, StepId};

use super::{from_step, surroundings};
use crate::cli::{ResumeArgs, TreatAs};
use crate::commands::{Context, dead_letters};
use crate::dead::DeadLetter;
use crate::definition::{Choice, Chosen, choose};
use crate::error::Error;
use crate::exit::Exit;
use crate::looking;
use crate::output::shown;
use crate::params::{BegunWork, Setting};

/// What would be done, and what is to be said of it.
#[derive(Debug, Default)]
struct Would {
    plan: Plan,
    notes: Vec<String>,
}

pub(super) async fn dry_run(
    context: &Context,
    shared: &Arc<dyn Store>,
    run: &RunId,
    args: &ResumeArgs,
) -> Result<Exit, Error> {
    let store = shared.as_ref();
    let snapshot = Snapshot::read(store, run).await?;
    let chosen = choose(store, &snapshot, &Choice::of(args)).await?;
    chosen.tell(context);
    surroundings::refuse_unknown_step(&chosen.workflow, args.until.as_deref())?;
    let look = looking::look(shared, &snapshot, &chosen, Occasion::Resume).await?;
    let mut stands = chosen.plan(store, &snapshot, Some(&look.verdicts), context.now()).await?;
    look.tell_in(&mut stands, &chosen.shape);
    if !args.set.is_empty() {
        let work = BegunWork::of(store, (&chosen.workflow, &chosen.shape), &snapshot).await?;
        tell_of_params(context, &work, &stands, args)?;
    }
    let stops = match args.restart {
        true => Vec::new(),
        false => crate::commands::plan::stops(store, &snapshot, &chosen.workflow).await?,
    };
    for stop in &stops {
        context.output.warn(stop);
    }
    let mut would = Would { plan: stands, notes: Vec::new() };
    if args.restart {
        would = started_over(context, &chosen);
    } else if let Some(from) = &args.from {
        let from = from_step(&chosen.workflow, from)?;
        would = gone_back(context, store, &snapshot, &chosen, &from).await?;
    } else if args.retry_failed {
        let letters = dead_letters::letters(store, run).await?;
        would = retried(context, &snapshot, &chosen, (letters, would.plan));
    }
    if let Some(until) = &args.until {
        would.notes.push(stop_after(&mut would.plan, &chosen.shape, until)?);
    }
    if would.notes.is_empty() && would.plan.decisions.iter().all(Decision::changes_nothing) {
        would.notes.push("A resume would do nothing, because every step is finished.".to_owned());
    }
    let is_asked = args.treat_as;
    let questions: Vec<String> = would.plan.questions().map(named).collect();
    if let Some(treat_as) = is_asked {
        settle(&mut would.plan, treat_as);
    }
    crate::commands::plan::show(context, Some(run.as_str()), &would.plan, stops)?;
    would.notes.iter().for_each(|note| context.output.note(note));
    for step in questions {
        match is_asked {
            Some(TreatAs::Done) => context.output.note(&format!("Step {step} would count as done.")),
            Some(TreatAs::Retry) => context.output.note(&format!("Step {step} would run again.")),
            None => {}
        }
    }
    context.output.note("Nothing was run, as asked.");
    Ok(Exit::Done)
}

/// Has steps in doubt run again, or count as done, as a person decides.
fn settle(plan: &mut Plan, treat_as: TreatAs) {
    for decision in plan.decisions.iter_mut().filter(|decision| decision.action == Action::Ask) {
        decision.action = match treat_as {
            TreatAs::Done => Action::Reuse,
            TreatAs::Retry => Action::Run,
        };
    }
}

fn tell_of_params(
    context: &Context,
    work: &BegunWork<'_>,
    plan: &Plan,
    args: &ResumeArgs,
) -> Result<(), Error> {
    let setting = Setting { set: &args.set, from: args.from.as_deref() };
    let params = match args.restart {
        true => setting.over(work.workflow, work.snapshot.entry.record.record().params.clone())?,
        false => setting.apply(work, plan)?,
    };
    let names = args.set.iter().map(|(name, _)| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    context.output.note(&match params {
        Some(_) => format!("The steps to come would read other values of {names}."),
        None => "The params are as asked for already.".to_owned(),
    });
    Ok(())
}

/// Plans a run from its first steps on.
fn started_over(context: &Context, chosen: &Chosen) -> Would {
    let Chosen { shape, .. } = chosen;
    let roots = shape.roots().into_iter().map(|place| shape.steps()[place].id.clone());
    let branch = at(BranchPath::main(), 0, standing_at(roots));
    Would {
        plan: plan(shape, &[branch], &Verdicts::new(), context.now()),
        notes: vec!["The run would start over; what was recorded stays.".to_owned()],
    }
}

/// Plans a run from a step on that it goes back to.
async fn gone_back(
    context: &Context,
    store: &dyn Store,
    snapshot: &Snapshot,
    chosen: &Chosen,
    from: &ResumeFrom,
) -> Result<Would, Error> {
    let shape = &chosen.shape;
    let mut would = match from {
        ResumeFrom::Step(step) => {
            let (seq, position) = opened(store, snapshot, shape, step).await?;
            let mut notes = vec![format!("Step {step} would run again, and what needs it.")];
            let asks = |step: &StepId| {
                format!("Step {step} must not be repeated: it would be in doubt when it comes next.")
            };
            notes.extend(position.undone.iter().map(asks));
            planned(context, store, snapshot, chosen, (seq, position), notes).await?
        }
        ResumeFrom::StepOn(branch, step) => {
            on_branch(context, store, snapshot, shape, (branch, step)).await?
        }
        ResumeFrom::Checkpoint(_) | ResumeFrom::Branches | ResumeFrom::End | ResumeFrom::Unknown(_) => {
            Would::default()
        }
    };
    if chosen.adoption.is_some() {
        would.notes.push("What else the changed file touches there is not told in advance.".to_owned());
    }
    Ok(would)
}

/// Plans a run from a position of the main branch on.
async fn planned(
    context: &Context,
    store: &dyn Store,
    snapshot: &Snapshot,
    chosen: &Chosen,
    (seq, mut position): (u64, Position),
    mut notes: Vec<String>,
) -> Result<Would, Error> {
    let mut open = Vec::new();
    for entry in &mut position.frontier {
        let asks = entry.waits.iter().any(|wait| !matches!(wait.on, WaitKind::Children | WaitKind::Resume));
        if entry.status == Status::Started || asks {
            (entry.status, entry.at.attempt) = (Status::Ready, 0);
            entry.waits.clear();
        }
        if entry.fan.is_some() {
            open.push(entry.step.to_string());
        }
    }
    if !open.is_empty() {
        notes.push(format!("What is done on the branches of {} is not told in advance.", open.join(", ")));
    }
    let effective = snapshot.effective(store, &chosen.shape).await?;
    let mut main: Vec<Effective> =
        effective.into_iter().filter(|branch| branch.branch.is_main()).take(1).collect();
    for branch in &mut main {
        (branch.seq, branch.lost, branch.stopped_by) = (seq, 0, None);
        branch.position.clone_from(&position);
    }
    Ok(Would { plan: plan(&chosen.shape, &main, &Verdicts::new(), context.now()), notes })
}

/// Finds where the main branch stands once a step that was started before is to run again.
async fn opened(
    store: &dyn Store,
    snapshot: &Snapshot,
    shape: &Shape,
    step: &StepId,
) -> Result<(u64, Position), Error> {
    let newest = snapshot.newest();
    let (run, seq) = (&newest.header().run, newest.header().seq);
    let position = newest.position().map(Position::with_failures_open).map_err(|flaw| RunError::NoState {
        at: newest.header().reference().to_string(),
        why: flaw.to_string(),
    })?;
    let at = format!("run {run}");
    if shape.place(step.as_str()).is_none() {
        return Err(RunError::InvalidStep(step.clone()).into());
    }
    let starts = |record: &Record| record.header().started.iter().any(|start| start.step == *step);
    // One that has ended may have been started in the run that this one began from.
    let unfinished = Unfinished::of(shape, &position);
    let has_ended = shape.place(step.as_str()).is_some_and(|place| !unfinished.has(place));
    if !has_ended && store.find_back(run, &BranchPath::main(), seq, &starts).await?.is_none() {
        let why = format!("step `{step}` has not been started in this run");
        return Err(RunError::NoState { at, why }.into());
    }
    Ok((seq, opened_again(shape, &position, step, &at)?))
}

/// Plans a run from a step of a branch beside the main one on: that branch, and all that joins it.
async fn on_branch(
    context: &Context,
    store: &dyn Store,
    snapshot: &Snapshot,
    shape: &Shape,
    (branch, step): (&BranchPath, &StepId),
) -> Result<Would, Error> {
    if shape.of_branch(branch).is_none_or(|own| own.place(step.as_str()).is_none()) {
        return Err(RunError::InvalidStep(step.clone()).into());
    }
    let run = &snapshot.entry.record.record().run;
    if store.newest(run, branch).await?.header().end == Some(End::Failed) {
        let why = "there is none, it has failed, or no step waits for it or has joined it".to_owned();
        return Err(RunError::NoState { at: format!("branch `{branch}` of run {run}"), why }.into());
    }
    let branches = joined_again(shape, [(branch.clone(), Some(step.clone()))]);
    Ok(Would {
        plan: plan(shape, &branches, &Verdicts::new(), context.now()),
        notes: vec![
            format!("Step {step} on {branch} would run again, and what comes after it."),
            "Whether that branch is still waited for or joined, and what else is unfinished, is not told in advance."
                .to_owned(),
        ],
    })
}

/// Returns branches that stand at a step each, and those above them, which join them next; parents before their children.
fn joined_again(
    shape: &Shape,
    named: impl IntoIterator<Item = (BranchPath, Option<StepId>)>,
) -> Vec<Effective> {
    let mut next: BTreeMap<(usize, BranchPath), BTreeSet<StepId>> = BTreeMap::new();
    for (branch, step) in named {
        let mut below = branch.clone();
        next.entry((branch.depth(), branch)).or_default().extend(step);
        while let Some((above, (name, _))) = below.parent().zip(below.opened_by()) {
            let own = shape.of_branch(&above);
            let joins = own.and_then(|own| own.opener(&name).map(|place| own.steps()[place].id.clone()));
            next.entry((above.depth(), above.clone())).or_default().extend(joins);
            below = above;
        }
    }
    next.into_iter().map(|((_, branch), steps)| at(branch, 0, standing_at(steps))).collect()
}

/// Plans a run in which items are tried again that failed for good.
fn retried(
    context: &Context,
    snapshot: &Snapshot,
    chosen: &Chosen,
    (letters, stands): (Vec<DeadLetter>, Plan),
) -> Would {
    let told = |letter: &DeadLetter| {
        let step = letter.step.as_ref().map(|step| format!(", from step {step} on")).unwrap_or_default();
        format!("Item {} would be tried again, on {}{step}.", shown(&letter.key), letter.failed_on)
    };
    let notes: Vec<String> = letters.iter().map(told).collect();
    if notes.is_empty() {
        let notes = vec!["No item would be tried again, because the run has no dead letters.".to_owned()];
        let idle = |decision: &Decision| matches!(decision.action, Action::Reuse | Action::Skip);
        let notes = if stands.decisions.iter().all(idle) { Vec::new() } else { notes };
        return Would { plan: stands, notes };
    }
    let main = snapshot.newest().position().unwrap_or_default().with_failures_open();
    let root = |letter: &DeadLetter| crate::definition::opener_on_main(&letter.branch);
    let waits = |step: Option<StepId>| {
        main.frontier.iter().any(|entry| Some(&entry.step) == step.as_ref() && entry.fan.is_some())
    };
    if letters.iter().all(|letter| waits(root(letter))) {
        return Would { plan: stands, notes };
    }
    let branches =
        joined_again(&chosen.shape, letters.into_iter().map(|letter| (letter.failed_on, letter.step)));
    Would { plan: plan(&chosen.shape, &branches, &Verdicts::new(), context.now()), notes }
}

/// Leaves out of a plan what is not begun when a session stops after a step: all that this step does not need; says so.
///
/// # Errors
/// [`RunError::InvalidStep`]: there is no such step.
pub(in crate::commands) fn stop_after(plan: &mut Plan, shape: &Shape, until: &str) -> Result<String, Error> {
    let Some(place) = shape.place(until) else {
        return Err(RunError::InvalidStep(StepId::new(until).map_err(Error::from_name)?).into());
    };
    let mut needed: BTreeSet<&StepId> = BTreeSet::new();
    let mut walk = vec![&shape.steps()[place]];
    while let Some(step) = walk.pop() {
        if needed.insert(&step.id) {
            let leads = |other: &&waypost::shape::Step| other.routes.contains(&step.id);
            walk.extend(step.needs.iter().filter_map(|need| shape.step(need.as_str())));
            walk.extend(shape.steps().iter().filter(leads));
        }
    }
    let is_later = |decision: &Decision| {
        let on_main = match decision.branch.is_main() {
            true => Some(decision.step.clone()),
            false => crate::definition::opener_on_main(&decision.branch),
        };
        !matches!(decision.action, Action::Reuse | Action::Skip)
            && on_main.is_some_and(|step| !needed.contains(&step))
    };
    let later: Vec<String> = plan.decisions.iter().filter(|one| is_later(one)).map(named).collect();
    plan.decisions.retain(|decision| !is_later(decision));
    let note = format!("It would stop after step {until}.");
    Ok(match later.is_empty() {
        true => note,
        false => format!("{note} Left for later: {}.", later.join(", ")),
    })
}

fn named(decision: &Decision) -> String {
    crate::reference::step_on(&decision.branch, decision.step.as_str())
}

/// Returns the position of a branch on which these steps are the next.
fn standing_at(steps: impl IntoIterator<Item = StepId>) -> Position {
    Position { frontier: steps.into_iter().map(FrontierEntry::ready).collect(), ..Position::default() }
}

/// Returns a branch that stands there.
fn at(branch: BranchPath, seq: u64, position: Position) -> Effective {
    Effective {
        branch,
        seq,
        lost: 0,
        position,
        evidence: BTreeMap::new(),
        reusable: BTreeMap::new(),
        passes: BTreeMap::new(),
        in_flux: BTreeSet::new(),
        stopped_by: None,
    }
}
