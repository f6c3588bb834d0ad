//! The definition for a resume: the run's own copy, or a workflow file that changed meanwhile.
//!
//! Comments, order, names, timeouts and retries are not in a fingerprint: a file with only these changes is
//! adopted without a question. A change of unfinished steps is shown and adopted. A change of finished steps
//! needs a decision of the user: `--with` reruns the affected steps.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use waypost::change::{PositionTransfer, explain, transfer_position};
use waypost::engine::{Adoption, Compared, Engine, InnerChange, InnerChangeKind, Snapshot, changed_within};
use waypost::plan::{Action, Cause, Decision, Effective, Plan, Verdicts, checks, plan};
use waypost::record::{Definition, End, Occasion, Phase, Position, Record, RunRecord, Status, Verdict, Wait};
use waypost::shape::Shape;
use waypost::store::{Signal, Store, StoreExt as _};
use waypost::{RunId, ScopePath, StepId};
use waypost_workflow::file::{ReadError, Workflow};
use waypost_workflow::program::shape_of;

use crate::cli::ResumeArgs;
use crate::error::Error;
use crate::format::text::relative_to_here;
use crate::run::current_evidence;
use crate::run::environment;
use crate::run::hooks;
use crate::run::reference::StepRef;
use crate::store_location::{self, recorded_path};
use crate::view::gives;
use crate::view::step_names::StepNames;

use adopt::{Changed, FinishedChoice, adopt};

/// The setting that marks the run of a script.
pub(crate) const SCRIPT: &str = "once";

/// Returns how to resume a run, as a clause. `words`: the options that name the store, with a leading space.
pub(crate) fn how_to_resume(record: &RunRecord, words: &str) -> String {
    if record.settings.contains_key(SCRIPT) {
        return "to resume, call the script again".to_owned();
    }
    match (&record.definition.text, record.program()) {
        (Some(_), _) => format!("resume with: waypost resume {}{words}", record.run),
        (None, Some(program)) => format!("to resume, start `{}` again", crate::output::shown(program)),
        (None, None) => "to resume, start the program of the run again".to_owned(),
    }
}

/// As [`how_to_resume`], as the beginning of a sentence.
pub(crate) fn resume_line(record: &RunRecord, words: &str) -> String {
    let clause = how_to_resume(record, words);
    let (first, rest) = clause.split_at(1);
    first.to_uppercase() + rest
}

/// Returns the definition in force at a record of the main scope.
pub(crate) async fn definition_at(
    store: &Arc<dyn Store>,
    snapshot: &Snapshot,
    record: &Record,
) -> Result<Definition, Error> {
    let engine = Engine::new(Arc::clone(store));
    let record = engine.load_with_state(&record.header().reference()).await?;
    Ok(Snapshot::definition(store.as_ref(), &snapshot.entry, &record).await?)
}

/// Returns the workflow of the definition in force; `None` for the run of a program.
pub(crate) fn workflow_in_force(snapshot: &Snapshot) -> Option<Workflow> {
    let text = snapshot.definition.text.as_deref()?;
    Workflow::parse(text, Path::new("the run's copy")).ok()
}

/// Returns the graph of the definition in force; `None` for the run of a program.
pub(crate) fn shape_in_force(snapshot: &Snapshot) -> Option<Shape> {
    shape_of(&workflow_in_force(snapshot)?, environment::parallel()).ok()
}

/// Returns the names of the steps in the definition in force.
pub(crate) fn names_of(snapshot: &Snapshot) -> StepNames {
    workflow_in_force(snapshot).as_ref().map(StepNames::of).unwrap_or_default()
}

/// Reads the names of the steps of a run; without a readable definition, scopes keep their keys.
pub(crate) async fn names(store: &dyn Store, run: &RunId) -> StepNames {
    Snapshot::read(store, run).await.as_ref().map(names_of).unwrap_or_default()
}

mod adopt;
mod at_stake;

/// The user's choice about a changed file.
#[derive(Debug, Clone, Default)]
pub(crate) struct Choice {
    with: Option<PathBuf>,
    /// The finished results to keep, and the steps to rerun. A step in neither, without `with`, has no choice
    /// yet.
    finished: FinishedChoice,
    keep: bool,
    /// Dead letters are retried, always by the run's own copy.
    letters: bool,
    /// Failed items are retried.
    retries: bool,
    restart: bool,
    /// Preview only: no decision is needed.
    looks: bool,
    /// For a fork: the state of the original run does not matter.
    forks: bool,
    /// A step of the ended run reruns.
    reruns: bool,
    /// The options of the resume.
    args: ResumeArgs,
}

impl Choice {
    /// Extracts the choice from the options of `resume`.
    pub(crate) fn of(args: &ResumeArgs) -> Self {
        let ResumeArgs { with, keep_definition, restart, retry, retry_failed, .. } = args;
        let finished = FinishedChoice::of(args);
        let (letters, retries) = (!retry.is_empty(), *retry_failed);
        let (keep, restart) = (*keep_definition, *restart);
        let with = with.clone();
        Self { with, finished, keep, letters, retries, restart, args: args.clone(), ..Self::default() }
    }

    /// Returns the choice of a preview: shows a resume with the changed file, whatever is affected.
    pub(crate) fn for_inspection() -> Self {
        Self { looks: true, ..Self::default() }
    }
}

/// The chosen definition of a resume.
#[derive(Debug, Clone)]
pub(crate) struct Chosen {
    pub(crate) workflow: Workflow,
    pub(crate) shape: Shape,
    /// The adoption of this definition, if it differs from the one in force.
    pub(crate) adoption: Option<Adoption>,
    /// The workflow file, as records name it.
    pub(crate) path: Option<String>,
    /// Notes for the user.
    pub(crate) notes: Vec<String>,
    /// The file has other steps, and the run has ended: only a rerun of a step adopts the file.
    awaits_rerun: bool,
}

impl Chosen {
    /// Chooses the definition of the run record.
    pub(crate) fn frozen(store: &dyn Store, record: &RunRecord) -> Result<Self, Error> {
        own_copy(store, record, &record.definition)
    }

    /// Returns whether finished steps rerun, or finished scopes reopen, because their definition changed.
    pub(crate) fn reruns_finished(&self) -> bool {
        let reruns =
            |adoption: &Adoption| adoption.redo || !adoption.rerun.is_empty() || !adoption.entered.is_empty();
        self.adoption.as_ref().is_some_and(reruns)
    }

    /// Chooses the definition in force by the newest sound record.
    pub(crate) fn in_force(store: &dyn Store, snapshot: &Snapshot) -> Result<Self, Error> {
        own_copy(store, snapshot.entry.record.record(), &snapshot.definition)
    }

    /// Chooses the definition in force at a record of the main scope.
    pub(crate) async fn at(
        store: &Arc<dyn Store>,
        snapshot: &Snapshot,
        record: &Record,
    ) -> Result<Self, Error> {
        let definition = definition_at(store, snapshot, record).await?;
        own_copy(store.as_ref(), snapshot.entry.record.record(), &definition)
    }

    /// Returns the plan of a resume with this definition and these verdicts; without verdicts, evidence
    /// counts as held.
    pub(crate) async fn plan(
        &self,
        store: &dyn Store,
        snapshot: &Snapshot,
        verdicts: Option<&Verdicts>,
        now: Timestamp,
    ) -> Result<Plan, Error> {
        let mut plan = self.unnamed_plan(store, snapshot, verdicts, now).await?;
        name_records(store, snapshot, &mut plan).await?;
        take_in(&mut plan, &store.signals(&snapshot.entry.summary.run).await?);
        Ok(plan)
    }

    /// Returns the plan with the records kept by the position: those of steps that can still matter.
    async fn unnamed_plan(
        &self,
        store: &dyn Store,
        snapshot: &Snapshot,
        verdicts: Option<&Verdicts>,
        now: Timestamp,
    ) -> Result<Plan, Error> {
        let by = |shape: &Shape, effective: &[Effective]| {
            verdicts.cloned().unwrap_or_else(|| believed(shape, effective))
        };
        let Some(Adoption { before, within, entered, kept, .. }) = &self.adoption else {
            let effective = at_once(snapshot.effective(store, &self.shape).await?);
            let verdicts = by(&self.shape, &effective);
            return Ok(of_scopes(plan(&self.shape, &effective, &verdicts, now), &self.shape, &effective));
        };
        let mut effective = at_once(snapshot.effective(store, before).await?);
        let asked = plan(before, &effective, &by(before, &effective), now);
        let mut redone = Vec::new();
        for scope in effective.iter_mut().filter(|scope| scope.scope.is_main()) {
            let (position, definition, ends) = (&scope.position, &snapshot.definition, &BTreeMap::new());
            let after = &self.shape;
            let (asks, kept) = (true, kept);
            let inputs =
                PositionTransfer { before, position, definition, after, within, entered, kept, ends, asks };
            let carried = transfer_position(&inputs);
            (scope.position, redone) = (carried.position, carried.redone);
        }
        // Scopes opened by a restarted step are discarded.
        effective.retain(|scope| {
            let opener = opener_on_main(&scope.scope);
            redone.iter().all(|(step, _)| opener.as_ref() != Some(step))
                && !opener.is_some_and(|step| entered.contains(&step) && self.drops(&scope.scope))
        });
        let verdicts = by(&self.shape, &effective);
        let mut plan = of_scopes(plan(&self.shape, &effective, &verdicts, now), &self.shape, &effective);
        explain(&mut plan, &redone);
        // A step started as non-idempotent stays in doubt, whatever the file says now.
        for question in asked.questions() {
            let same =
                |decision: &&mut Decision| decision.step == question.step && decision.scope == question.scope;
            match plan.decisions.iter_mut().find(same) {
                Some(decision) => decision.clone_from(question),
                // The file lacks the step, or the opener of its scope.
                None if matches!(question.cause, Cause::InDoubt(_) | Cause::Unbelieved(_)) => {
                    plan.decisions.push(question.clone());
                }
                None => {}
            }
        }
        Ok(plan)
    }

    /// Returns whether the list of items in the file does not have the item of a scope, or below whose item the scope is.
    fn drops(&self, scope: &ScopePath) -> bool {
        let mut around = std::iter::successors(Some(scope.clone()), ScopePath::parent);
        let Some((step, key)) = around.find(|above| above.depth() == 1).and_then(|item| item.opened_by())
        else {
            return false;
        };
        let foreach = self.workflow.step(step.as_str()).and_then(|step| step.work.foreach());
        let foreach = foreach.filter(|foreach| foreach.key.is_none());
        let listed = foreach.and_then(|foreach| Some((foreach, foreach.items.listed()?)));
        listed.is_some_and(|(foreach, items)| !items.iter().any(|item| foreach.default_key(item) == key))
    }

    fn with_note(mut self, note: String) -> Self {
        self.notes.push(note);
        self
    }
}

/// Ends the delays of retries: a resume by a person tries at once.
fn at_once(mut effective: Vec<Effective>) -> Vec<Effective> {
    let entries = effective.iter_mut().flat_map(|scope| &mut scope.position.frontier);
    for entry in entries.filter(|entry| entry.status == Status::Ready) {
        entry.wake_at = None;
    }
    effective
}

/// Returns verdicts under which all finished steps are trusted.
fn believed(shape: &Shape, effective: &[Effective]) -> Verdicts {
    let finished = checks(shape, effective).into_iter().filter(|check| check.seq.is_some());
    finished.map(|check| ((check.scope, check.step, check.index), Verdict::Ok)).collect()
}

/// Sets steps to run whose waits were answered by pending signals.
fn take_in(plan: &mut Plan, given: &[Signal]) {
    for decision in &mut plan.decisions {
        let Cause::Waits(waits) = &decision.cause else { continue };
        let come: Vec<Wait> = waits
            .iter()
            .filter(|wait| given.iter().any(|signal| gives(signal, &wait.id, &wait.on)))
            .cloned()
            .collect();
        if !come.is_empty() {
            (decision.action, decision.cause) = (Action::Run, Cause::Come(come));
        }
    }
}

/// Removes from the plan of a hook's scope the steps of the opener's other hooks, and all steps if the opener has no open
/// hooks: after a rollback.
fn of_scopes(mut plan: Plan, shape: &Shape, effective: &[Effective]) -> Plan {
    for scope in effective {
        let Some(opener) = hooks::opener(shape, &scope.scope) else { continue };
        let above = effective.iter().find(|above| Some(&above.scope) == scope.scope.parent().as_ref());
        let mut entries = above.into_iter().flat_map(|above| above.position.open_entries());
        let is_open = entries.any(|entry| entry.step == opener.id && entry.hooks.is_some());
        let own = hooks::steps_of(shape, &scope.scope, &scope.position);
        plan.decisions.retain(|decision| {
            decision.scope != scope.scope || is_open && own.iter().any(|step| step.id == decision.step)
        });
    }
    plan
}

/// Returns the step of the main scope that contains a scope.
pub(crate) fn opener_on_main(scope: &ScopePath) -> Option<StepId> {
    let mut outer = scope.clone();
    while outer.depth() > 1 {
        outer = outer.parent()?;
    }
    outer.opened_by().map(|(step, _)| step)
}

/// Adds the finishing record of each finished step, also if the position no longer has it.
async fn name_records(store: &dyn Store, snapshot: &Snapshot, plan: &mut Plan) -> Result<(), Error> {
    let unnamed = |decision: &Decision| matches!(decision.cause, Cause::Finished(None));
    let scopes: BTreeSet<ScopePath> =
        plan.decisions.iter().filter(|decision| unnamed(decision)).map(|found| found.scope.clone()).collect();
    for scope in scopes {
        let heads = snapshot.heads.iter().map(|head| &head.record).chain(&snapshot.ended);
        let Some(head) = heads.map(Record::header).find(|header| header.scope == scope) else { continue };
        let history = store.history(&head.run, &scope, head.seq).await?;
        let mut ends: HashMap<&StepId, u64> = HashMap::new();
        // Newest first: the last of several ends of a step counts.
        for header in history.iter().map(Record::header) {
            if let (Phase::Completed(_), Some(step)) = (&header.phase, &header.step) {
                ends.entry(step).or_insert(header.seq);
            }
        }
        let open = plan.decisions.iter_mut().filter(|found| found.scope == scope && unnamed(found));
        for decision in open {
            decision.cause = Cause::Finished(ends.get(&decision.step).copied());
        }
    }
    Ok(())
}

/// Chooses the definition for a resume of a run. After the end of the run, added and removed steps of the file are adopted
/// only together with a rerun for failed evidence.
///
/// # Errors
/// [`Error::Changed`]: the file changed in finished steps, and the user made no choice.
pub(crate) async fn choose_to_resume(
    store: &Arc<dyn Store>,
    snapshot: &Snapshot,
    choice: Choice,
    now: Timestamp,
) -> Result<Chosen, Error> {
    let chosen = choose(store.as_ref(), snapshot, &choice).await?;
    if !chosen.awaits_rerun {
        return Ok(chosen);
    }
    let look = current_evidence::look(store, snapshot, &chosen, Occasion::Resume).await?;
    let mut plan = chosen.plan(store.as_ref(), snapshot, Some(&look.verdicts), now).await?;
    look.tell_in(&mut plan, &chosen.shape);
    if plan.decisions.iter().all(Decision::changes_nothing) {
        return Ok(chosen);
    }
    choose(store.as_ref(), snapshot, &Choice { reruns: true, ..choice }).await
}

/// Chooses the definition of a run, without a look at evidence.
///
/// # Errors
/// [`Error::Changed`]: the file changed in finished steps, and the user made no choice.
pub(crate) async fn choose(store: &dyn Store, snapshot: &Snapshot, choice: &Choice) -> Result<Chosen, Error> {
    let frozen = snapshot.entry.record.record();
    let own = own_copy(store, frozen, &snapshot.definition)?;
    let ended = snapshot.ended.as_ref().filter(|_| !choice.restart).map(Record::header);
    // A cancelled run is not resumed, by any definition.
    let is_cancelled = ended.is_some_and(|header| header.end == Some(End::Cancelled));
    if is_cancelled || (choice.keep && !choice.letters) {
        return Ok(own);
    }
    let path = path_in_force(frozen, &snapshot.definition);
    let recorded = path.map(|path| store_location::from_home(store.home(), path));
    if choice.keep {
        return Ok(beside_the_file(own, snapshot, recorded.as_deref()));
    }
    let file = match (&choice.with, recorded) {
        (Some(file), _) => file.clone(),
        (None, Some(file)) if file.exists() => file,
        (None, Some(_)) if ended.is_some() => return choice.finished.check(&[]).map(|()| own),
        (None, Some(file)) => {
            choice.finished.check(&[])?;
            let note = format!("{} does not exist; continuing with the run's own copy.", shown(&file));
            return Ok(own.with_note(note));
        }
        (None, None) => return Ok(own),
    };
    let changed = match Workflow::read(&relative_to_here(&file)) {
        Ok(changed) => changed,
        // History stays readable.
        Err(ReadError::File(_)) if choice.looks => {
            let file = shown(&file);
            let note = format!(
                "{file} changed, and is not a valid workflow: a resume is refused; `waypost check {file}` lists \
                 the problems."
            );
            return Ok(own.with_note(note));
        }
        Err(ReadError::File(error)) if choice.with.is_none() => {
            return Err(Error::NotAdopted {
                run: snapshot.entry.summary.run.clone(),
                error: Box::new(error),
            });
        }
        Err(error) => return Err(error.into()),
    };
    let changed = with_first_ids(changed, &own)?;
    if snapshot.definition.text.as_deref() == Some(changed.text()) {
        return choice.finished.check(&[]).map(|()| own);
    }
    let position = snapshot.newest().position().unwrap_or_default().with_failures_open();
    let path = recorded_path(store, &file)?;
    let shape = shape_of(&changed, environment::parallel())?;
    let run = &snapshot.entry.summary.run;
    let compared = Compared { before: &own.shape, position: &position, after: &shape };
    let within = match choice.restart {
        true => BTreeMap::new(),
        false => changed_within(store, run, compared).await?,
    };
    let (position, file) = (&position, file.as_path());
    let about = Changed { store, snapshot, position, file, choice, within };
    let mut chosen = adopt(about, own, changed).await?;
    if let Some(adoption) = &mut chosen.adoption {
        // The next resume looks there, too.
        adoption.definition.path = path.clone().filter(|path| frozen.path.as_ref() != Some(path));
        chosen.path = path;
    }
    Ok(chosen)
}

/// Chooses the run's own copy, with a note if the file differs.
fn beside_the_file(own: Chosen, snapshot: &Snapshot, file: Option<&Path>) -> Chosen {
    let (text, run) = (&snapshot.definition.text, &snapshot.entry.summary.run);
    // A missing or unreadable file does not matter here. The text of a workflow has its included files.
    let text_of = |file: &Path| match Workflow::read(file) {
        Ok(workflow) => Some(workflow.text().to_owned()),
        Err(_) => std::fs::read_to_string(file).ok(),
    };
    let read = file.and_then(|file| Some((file, text_of(file)?)));
    match read.filter(|(_, read)| text.as_ref().is_some_and(|text| text != read)) {
        Some((file, _)) => {
            let file = shown(file);
            own.with_note(format!(
                "{file} changed; dead letters are retried with the run's own copy. To use the file: \
                 `waypost resume {run} --retry-failed --with {file} --keep-finished`"
            ))
        }
        None => own,
    }
}

/// Returns the file of a run's definition, as records name it.
pub(crate) fn path_in_force<'r>(record: &'r RunRecord, definition: &'r Definition) -> Option<&'r str> {
    definition.path.as_deref().or(record.path.as_deref())
}

/// Chooses a file for a fork at `position`. `from`: the step to rerun. Changes within a group, all of steps that rerun, do not
/// rerun the whole group.
///
/// # Errors
/// The errors in the file.
pub(crate) async fn of_fork(
    store: &dyn Store,
    own: Chosen,
    snapshot: &Snapshot,
    position: &Position,
    (file, from): (&Path, Option<&str>),
) -> Result<Chosen, Error> {
    let changed = with_first_ids(Workflow::read(&relative_to_here(file))?, &own)?;
    let choice = &Choice { forks: true, ..Choice::default() };
    let mut within = BTreeMap::new();
    if let Some(StepRef { scope: Some(path), step: Some(step) }) = from.map(StepRef::parse) {
        let shape = shape_of(&changed, environment::parallel())?;
        let compared = Compared { before: &own.shape, position, after: &shape };
        within = changed_within(store, &snapshot.entry.summary.run, compared).await?;
        let scope = shape.of_scope(&path);
        let reruns: BTreeSet<usize> = scope.map_or_else(BTreeSet::new, |scope| {
            let named: Vec<usize> = scope.place(&step).into_iter().collect();
            scope.downstream(&named).into_iter().chain(named).collect()
        });
        let is_rerun = |inner: &InnerChange| {
            let place = scope.and_then(|scope| scope.place(inner.step.as_str()));
            inner.kind == InnerChangeKind::Altered
                && inner.scope == path
                && place.is_some_and(|place| reruns.contains(&place))
        };
        within.retain(|_, changes| changes.iter().all(is_rerun));
    }
    let about = Changed { store, snapshot, position, file, choice, within };
    adopt(about, own, changed).await
}

/// Returns the id in the run of a step with another id in the workflow file, by `renamed_from`.
pub(crate) fn first_id(store: &dyn Store, snapshot: &Snapshot, id: &str) -> Option<String> {
    let own = Chosen::in_force(store, snapshot).ok()?.workflow;
    if own.step(id).is_some() {
        return None;
    }
    let named = |workflow: &Workflow| {
        let step = workflow.all_steps().find(|step| step.name.as_deref() == Some(id))?;
        own.step(&step.id).map(|step| step.id.clone())
    };
    named(&own).or_else(|| {
        let path = path_in_force(snapshot.entry.record.record(), &snapshot.definition)?;
        let changed = Workflow::read(&store_location::from_home(store.home(), path)).ok()?;
        named(&changed.with_first_ids(&own).ok()?)
    })
}

/// Keeps the run's ids for steps renamed in the file.
fn with_first_ids(changed: Workflow, own: &Chosen) -> Result<Workflow, Error> {
    changed.with_first_ids(&own.workflow).map_err(|error| Error::File(Box::new(error)))
}

fn own_copy(store: &dyn Store, record: &RunRecord, definition: &Definition) -> Result<Chosen, Error> {
    let file = path_in_force(record, definition).map_or_else(
        || PathBuf::from(format!("{}.yaml", record.workflow)),
        |path| store_location::from_home(store.home(), path),
    );
    if record.settings.contains_key(SCRIPT) {
        return Err(Error::usage(
            format!("run {} has no workflow file: it belongs to `waypost once` in a script", record.run),
            format!("{}; `waypost show {}` lists its steps", how_to_resume(record, ""), record.run),
        ));
    }
    let Some(text) = &definition.text else {
        return Err(Error::usage(
            format!("run {} has no workflow file: it belongs to a program", record.run),
            format!("{}; `waypost show {}` lists its steps", how_to_resume(record, ""), record.run),
        ));
    };
    let workflow = Workflow::parse(text, &file).map_err(|error| Error::File(Box::new(error)))?;
    let shape = shape_of(&workflow, environment::parallel())?;
    let path = path_in_force(record, definition).map(ToOwned::to_owned);
    Ok(Chosen { workflow, shape, adoption: None, path, notes: Vec::new(), awaits_rerun: false })
}

fn shown(path: &Path) -> String {
    relative_to_here(path).display().to_string()
}
