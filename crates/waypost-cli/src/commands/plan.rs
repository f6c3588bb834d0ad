//! `waypost plan` and `waypost why`: the decisions of a resume, and the records they are based on.

use std::collections::BTreeSet;
use std::sync::Arc;

use waypost::engine::Snapshot;
use waypost::plan::{Action, Cause, Decision, Plan};
use waypost::record::{End, FailureKind, Flaw, Header, Occasion, Phase, Record, Settled, SettledAs};
use waypost::shape::Shape;
use waypost::store::{History, Scan, ScanOrder, Store, StoreExt as _};
use waypost::{RunId, ScopePath, StepId};

use super::{Context, checkpoints, executions};
use crate::cli::DeadLetter;
use crate::cli::{OneRun, WhyArgs};
use crate::error::Error;
use crate::exit::Exit;
use crate::format::text::quoted;
use crate::format::time;
use crate::output::shown;
use crate::run::current_evidence;
use crate::run::dead_letters::{self, letters_of};
use crate::run::definition::{
    Choice, Chosen, choose_to_resume, names_of, opener_on_main, resume_line, shape_in_force,
    workflow_in_force,
};
use crate::run::doubt::{cause_of, doubts};
use crate::run::failed_item::FailedStep;
use crate::run::reference::{StepRef, encode, no_scope, no_step};
use crate::run::refusals::refusals;
use crate::run::run_status;
use crate::view::doubt::answer_lines;
use crate::view::step_names::StepNames;
use crate::view::step_of;
use crate::view::{CheckpointView, DecisionView, ExecutedView, ExecutionView, PlanView, VERSION, WhyView};

pub(crate) async fn plan(context: &Context, args: OneRun) -> Result<Exit, Error> {
    let (store, run) = context.find(args.run.as_deref()).await?;
    let snapshot = Snapshot::read(store.as_ref(), &run).await?;
    let (plan, stops) = planned(context, &store, &snapshot).await?;
    report_unnamed(context, store.as_ref(), &snapshot, &plan).await?;
    let is_stopped = !stops.is_empty();
    let decisions = views(store.as_ref(), &run, &plan).await?;
    show(context, Some(run.as_str()), (decisions, stops), &names_of(&snapshot))?;
    if !context.output.json && !is_stopped && plan.decisions.iter().all(Decision::changes_nothing) {
        context.output.note("A resume would do nothing, because every step is finished.");
    }
    Ok(Exit::Done)
}

pub(crate) async fn why(context: &Context, mut args: WhyArgs) -> Result<Exit, Error> {
    let (store, run) = context.find(args.run.as_deref()).await?;
    encode(store.as_ref(), &run, &mut args.step).await?;
    let snapshot = Snapshot::read(store.as_ref(), &run).await?;
    if snapshot.definition.text.is_none() {
        return why_of_program(context, store.as_ref(), &snapshot, args.step.as_deref()).await;
    }
    let (plan, stops) = planned(context, &store, &snapshot).await?;
    let open = |decision: &&Decision| !matches!(decision.action, Action::Reuse | Action::Skip);
    let named = args.step.as_deref().map(StepRef::parse);
    let names = names_of(&snapshot);
    let ended;
    if let Some(scope) =
        named.as_ref().filter(|named| named.step.is_none()).and_then(|named| named.scope.as_ref())
    {
        refuse_scope(store.as_ref(), &snapshot, (scope, &names)).await?;
    }
    let decision = match &named {
        Some(named) => {
            let meant = |decision: &&Decision| named.is(&decision.scope, decision.step.as_str());
            match plan.decisions.iter().find(meant) {
                Some(decision) => decision,
                None => {
                    ended = on_ended(store.as_ref(), &snapshot, named).await?;
                    &ended
                }
            }
        }
        // A decision for a person comes first.
        None => {
            let own = |decision: &&Decision| !names.is_for_hooks(decision.step.as_str());
            let last = plan.decisions.iter().rfind(own);
            match plan.questions().next().or(plan.decisions.iter().find(open)).or(last) {
                Some(decision) => decision,
                None => {
                    return Err(Error::not_found(
                        format!("step in run {run}"),
                        "the workflow of the run has no steps",
                    ));
                }
            }
        }
    };
    let head = snapshot.heads.iter().find(|head| head.record.header().scope == decision.scope);
    let newest = match head {
        Some(head) => head.record.clone(),
        None => store.newest(&run, &decision.scope).await?,
    };
    let Executed { executions, records } =
        Executed::of(context, store.as_ref(), &decision.step, newest.header()).await?;
    let mut view = DecisionView::from(decision);
    if decision.action == Action::Ask {
        view.cause.text = cause_of(store.as_ref(), &run, decision).await?;
    }
    if context.output.json {
        context.output.document(&WhyView {
            v: VERSION,
            run: run.to_string(),
            decision: view,
            executions,
            history: records,
            stops,
        })?;
        return Ok(Exit::Done);
    }
    let mut text = format!("{}\n", sentence(decision, &view.cause.text, &names));
    if decision.cause == Cause::ScopesFailed {
        let workflow = workflow_in_force(&snapshot);
        let failed = FailedStep {
            store: store.as_ref(),
            run: &run,
            workflow: workflow.as_ref(),
            scope: &decision.scope,
            step: &decision.step,
            kind: FailureKind::Limit,
        };
        if let Some(item) = failed.first_item().await? {
            text.push_str(&item.told(context.output.paint, run.as_str(), &context.store_words()));
        }
    }
    let is_of_evidence = matches!(decision.cause, Cause::EvidenceUnknown(_) | Cause::EvidenceUndone { .. });
    if decision.action == Action::Ask && !is_of_evidence {
        let workflow = Chosen::in_force(store.as_ref(), &snapshot)?.workflow;
        let asked = doubts(store.as_ref(), &run, &workflow, [decision]).await?;
        let line = format!("waypost resume {run}{}", context.store_words());
        text.push_str(&format!("Decide with:{}\n", answer_lines(&line, &asked)));
    }
    if let Some(letter) = dead_letter(store.as_ref(), &run, &decision.scope).await? {
        let key = match letter.scope.depth() {
            1 => letter.key.clone(),
            _ => names.path(&letter.scope),
        };
        let again = format!("waypost dead-letters retry {run}{} {}", context.store_words(), quoted(&key));
        let error = letter.failure.error.join(": ");
        text.push_str(&format!("Dead letter: {}\n  retry with: {again}\n", shown(&error)));
    }
    text.push_str(&Executed { executions, records }.told(context, &names));
    context.output.sentences(&text)?;
    Ok(Exit::Done)
}

/// Prints the executions of a step in the run of a program: only the program plans a resume.
async fn why_of_program(
    context: &Context,
    store: &dyn Store,
    snapshot: &Snapshot,
    step: Option<&str>,
) -> Result<Exit, Error> {
    let record = snapshot.entry.record.record();
    let run = &record.run;
    let Some(step) = step else {
        let hint = format!("`waypost show {run}` lists the steps; then: waypost why {run} STEP");
        return Err(Error::usage("no step given".to_owned(), hint));
    };
    let named = StepRef::parse(step);
    let scope = named.scope.clone().unwrap_or_else(ScopePath::main);
    if !store.scopes(run).await?.contains(&scope) {
        return Err(no_step(store, run, &named).await?);
    }
    let newest = store.newest(run, &scope).await?;
    let id = match &named.step {
        Some(step) => StepId::new(step).ok(),
        None => newest.header().step.clone(),
    };
    let Some(id) = id else { return Err(no_step(store, run, &named).await?) };
    let executed = Executed::of(context, store, &id, newest.header()).await?;
    if executed.records.is_empty() {
        return Err(no_step(store, run, &named).await?);
    }
    if context.output.json {
        let Executed { executions, records: history } = executed;
        let (run, step, scope) = (run.to_string(), id.to_string(), scope.to_string());
        context.output.document(&ExecutedView { v: VERSION, run, step, scope, executions, history })?;
        return Ok(Exit::Done);
    }
    let names = names_of(snapshot);
    let mut text = executed.told(context, &names);
    if snapshot.status().is_resumable() {
        text.push_str(&format!("\n{}", resume_line(record, "")));
    }
    context.output.sentences(&text)?;
    Ok(Exit::Done)
}

/// The executions of a step, and its effective records, oldest first.
struct Executed {
    executions: Vec<ExecutionView>,
    records: Vec<CheckpointView>,
}

impl Executed {
    async fn of(context: &Context, store: &dyn Store, step: &StepId, newest: &Header) -> Result<Self, Error> {
        let history = store.effective_history(&newest.run, &newest.scope, newest.seq).await?;
        report_gaps(context, &history);
        let about = |record: &&Record| {
            let header = record.header();
            header.step.as_ref() == Some(step) || header.started.iter().any(|start| start.step == *step)
        };
        let mut records = Vec::new();
        for record in history.records.iter().rev().filter(about) {
            records.push(checkpoints::checked(store, record).await?);
        }
        let mut executions = executions::of(step, &all_of(store, newest).await?);
        if let Some(opener) = opener_on_main(&newest.scope).filter(|_| !executions.is_empty()) {
            let main = store.newest(&newest.run, &ScopePath::main()).await?;
            executions.extend(executions::settled_with(&opener, &all_of(store, main.header()).await?));
            executions.sort_by_key(|execution| execution.at);
        }
        Ok(Self { executions, records })
    }

    fn told(&self, context: &Context, names: &StepNames) -> String {
        let mut text = String::new();
        for ExecutionView { action, reference, cause, at, .. } in &self.executions {
            text.push_str(&format!(
                "{} {action} at {}: {}\n",
                time::utc(*at),
                names.plain(reference),
                shown(&cause.text)
            ));
        }
        if !self.records.is_empty() {
            text.push_str(&checkpoints::history(&context.output, &self.records, names));
        } else if self.executions.is_empty() {
            text.push_str("No record of the run mentions this step.");
        }
        text
    }
}

/// Reads all records of a scope, oldest first, including undone ones.
async fn all_of(store: &dyn Store, newest: &Header) -> Result<Vec<Record>, Error> {
    let mut records = Vec::new();
    let mut scan = Scan { scope: Some(newest.scope.clone()), ..Scan::of(&newest.run) };
    loop {
        let page = store.scan(&scan).await?;
        records.extend(page.records);
        match page.next {
            Some(cursor) => scan.cursor = Some(cursor),
            None => return Ok(records),
        }
    }
}

/// Returns the dead letter of a scope, if the scope ended as one.
async fn dead_letter(store: &dyn Store, run: &RunId, scope: &ScopePath) -> Result<Option<DeadLetter>, Error> {
    if scope.is_main() {
        return Ok(None);
    }
    let letters = letters_of(store, run).await?;
    Ok(letters.into_iter().find(|letter| letter.scope == *scope || letter.failed_on == *scope))
}

/// Refuses a scope instead of a step; the hint names the steps of the scope.
async fn refuse_scope(
    store: &dyn Store,
    snapshot: &Snapshot,
    (scope, names): (&ScopePath, &StepNames),
) -> Result<(), Error> {
    let run = &snapshot.entry.summary.run;
    let shape = shape_in_force(snapshot);
    let steps = shape.as_ref().and_then(|shape| shape.of_scope(scope)).map(Shape::steps);
    let Some(steps) = steps.filter(|steps| steps.len() > 1) else { return Ok(()) };
    if !store.scopes(run).await?.contains(scope) {
        return Err(no_scope(run, scope.as_str()));
    }
    let steps: Vec<String> = steps.iter().map(|step| names.called(scope, step.id.as_str())).collect();
    let message = format!("`{}` is a scope, not a step", names.path(scope));
    Err(Error::usage(message, format!("name one of {}", steps.join(", "))))
}

/// Returns the outcome of a step in an ended scope, which has no further decisions.
async fn on_ended(store: &dyn Store, snapshot: &Snapshot, named: &StepRef) -> Result<Decision, Error> {
    let run = &snapshot.entry.summary.run;
    let there = match &named.scope {
        Some(scope) => store.scopes(run).await?.get(scope).cloned(),
        None => None,
    };
    let Some(scope) = there else { return Err(no_step(store, run, named).await?) };
    let newest = store.newest(run, &scope).await?;
    let about = newest.header();
    let step = match &named.step {
        Some(step) => StepId::new(step).ok(),
        None => about.step.clone(),
    };
    let Some(step) = step else { return Err(no_step(store, run, named).await?) };
    let scan = Scan {
        scope: Some(scope.clone()),
        step: Some(step.to_string()),
        order: ScanOrder::NewestFirst,
        limit: 1,
        ..Scan::of(run)
    };
    let page = store.scan(&scan).await?;
    let Some(last) = page.records.first() else {
        let shape = shape_in_force(snapshot);
        if shape.as_ref().and_then(|shape| shape.of_scope(&scope)?.step(step.as_str())).is_none() {
            return Err(no_step(store, run, named).await?);
        }
        // Its records are damaged or missing.
        let (action, cause) = match about.end {
            Some(End::Completed) => (Action::Reuse, Cause::Finished(None)),
            _ => (Action::Skip, Cause::ScopeEnded),
        };
        return Ok(Decision { step, scope, action, cause });
    };
    let last = last.header();
    let (action, cause) = match &last.phase {
        _ if opened_by_work(snapshot, &scope) && !dead_letters::counts(store, run, &newest).await? => {
            (Action::Skip, Cause::LeftBehind)
        }
        Phase::Completed(_) => (Action::Reuse, Cause::Finished(Some(last.seq))),
        _ => match newest.position().ok().and_then(|position| position.ledger.get(&step).cloned()) {
            // A reused end.
            Some(Settled { how: SettledAs::Completed, seq, .. }) => {
                (Action::Reuse, Cause::Finished(Some(seq)))
            }
            _ => (Action::Skip, Cause::ScopeEnded),
        },
    };
    Ok(Decision { step, scope, action, cause })
}

/// Returns whether a scope and all its ancestors belong to an item, a group or an included file, and not to
/// a hook.
fn opened_by_work(snapshot: &Snapshot, scope: &ScopePath) -> bool {
    let Some(workflow) = workflow_in_force(snapshot) else { return false };
    let mut around = std::iter::successors(Some(scope.clone()), ScopePath::parent);
    around.all(|scope| {
        let Some((above, (opener, _))) = scope.parent().zip(scope.opened_by()) else { return true };
        let opener = step_of(&workflow, &above, opener.as_str());
        opener.is_some_and(|step| {
            step.work.foreach().is_some() || step.work.body().is_some() || step.work.child().is_some()
        })
    })
}

/// Warns of damage that may be the reason for a finished step without a record.
async fn report_unnamed(
    context: &Context,
    store: &dyn Store,
    snapshot: &Snapshot,
    plan: &Plan,
) -> Result<(), Error> {
    let unnamed = |decision: &&Decision| matches!(decision.cause, Cause::Finished(None));
    let scopes: BTreeSet<_> = plan.decisions.iter().filter(unnamed).map(|found| &found.scope).collect();
    let heads = snapshot.heads.iter().map(|head| &head.record).chain(&snapshot.ended).map(Record::header);
    for head in heads.filter(|head| scopes.contains(&head.scope)) {
        let history = store.effective_history(&head.run, &head.scope, head.seq).await?;
        report_gaps(context, &history);
    }
    Ok(())
}

/// Warns of the damage in a history of the main scope; of other scopes, [`planned`] does.
fn report_gaps(context: &Context, history: &History) {
    let of_main = history.damaged.iter().filter(|damage| damage.scope.is_main());
    of_main.for_each(|damage| context.warn_of_damage(damage));
}

fn sentence(decision: &Decision, text: &str, names: &StepNames) -> String {
    let Decision { cause, action, .. } = decision;
    let would = match action {
        Action::Reuse => "reuse the result",
        Action::Recheck => "check the result, and reuse it if unchanged",
        Action::Run => "it runs",
        Action::Retry => "retry",
        Action::Restart => "restart",
        Action::Wait => "it waits",
        Action::Ask => "needs a decision",
        Action::Skip => "skip",
    };
    let step = names.called(&decision.scope, decision.step.as_str());
    let because = if matches!(cause, Cause::After(_)) { "" } else { "because " };
    format!("step {step}: {would}, {because}{text}")
}

/// Plans a resume, and prints the errors of the resume as warnings. Returns the errors too.
pub(super) async fn planned(
    context: &Context,
    shared: &Arc<dyn Store>,
    snapshot: &Snapshot,
) -> Result<(Plan, Vec<String>), Error> {
    let store = shared.as_ref();
    let chosen = choose_to_resume(shared, snapshot, Choice::for_inspection(), context.now()).await?;
    chosen.tell(context);
    for damage in snapshot.damaged().filter(|damage| damage.flaw != Flaw::Missing) {
        let at = crate::run::reference::damaged_reference(&damage.run, damage);
        context
            .output
            .warn(&format!("checkpoint {at} is damaged; a resume continues from the checkpoint before"));
    }
    for damage in run_status::damaged_items(store, snapshot).await? {
        context.warn_of_damage(&damage);
    }
    let refusals = refusals(store, snapshot, &chosen.workflow).await?;
    for refusal in &refusals {
        let hint = refusal.diagnosis().hint.map(|hint| format!("; {hint}")).unwrap_or_default();
        context.output.warn(&context.with_store(&format!("a resume is refused: {refusal}{hint}")));
    }
    let stops = refusals.iter().map(ToString::to_string).collect();
    let look = current_evidence::look(shared, snapshot, &chosen, Occasion::Resume).await?;
    let mut plan = chosen.plan(store, snapshot, Some(&look.verdicts), context.now()).await?;
    look.tell_in(&mut plan, &chosen.shape);
    current_evidence::correct(shared, snapshot, &chosen, &mut plan).await?;
    Ok((plan, stops))
}

/// Returns the decisions of a plan, with the causes of the questions.
pub(crate) async fn views(store: &dyn Store, run: &RunId, plan: &Plan) -> Result<Vec<DecisionView>, Error> {
    let mut views: Vec<DecisionView> = plan.decisions.iter().map(DecisionView::from).collect();
    for (view, decision) in views.iter_mut().zip(&plan.decisions) {
        if decision.action == Action::Ask {
            view.cause.text = cause_of(store, run, decision).await?;
        }
    }
    Ok(views)
}

/// Prints a plan; in JSON, with the errors of a resume, which text output has printed before.
pub(crate) fn show(
    context: &Context,
    run: Option<&str>,
    (decisions, stops): (Vec<DecisionView>, Vec<String>),
    names: &StepNames,
) -> Result<(), Error> {
    if context.output.json {
        context.output.document(&PlanView {
            v: VERSION,
            run: run.map(ToOwned::to_owned),
            decisions,
            stops,
        })?;
        return Ok(());
    }
    let row = |view: DecisionView| {
        let scope = ScopePath::new(&view.scope).unwrap_or_else(|_| ScopePath::main());
        let step = names.beside(names.called(&scope, &view.step), &scope, &view.step);
        vec![step, view.action.to_owned(), view.cause.text]
    };
    let rows: Vec<Vec<String>> = decisions.into_iter().map(row).collect();
    Ok(context.output.answer(&context.output.table(&["STEP", "ACTION", "CAUSE"], &rows))?)
}
