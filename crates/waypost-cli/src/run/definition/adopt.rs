//! The effect of a changed workflow file on the results of a run, and the choices of a person.
//!
//! Input: the definition in force, the changed file and a choice. Output: the adoption for the engine, or the
//! table of results at stake.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use waypost::change::{ChangeKind, StepChange, changes};
use waypost::engine::{Adoption, InnerChange, InnerChangeKind, Snapshot, step_path};
use waypost::record::{Definition, Phase, Position, Record, RequestCause, RerunKind, RerunRequest};
use waypost::shape::Shape;
use waypost::store::{Store, StoreExt as _};
use waypost::{ScopePath, StepId};
use waypost_workflow::file::{Body, Step, Workflow, separated};
use waypost_workflow::program::shape_of;

use super::at_stake::FinishedResults;
use super::{Choice, Chosen, shown};
use crate::cli::ResumeArgs;
use crate::error::Error;
use crate::format::text::relative_to_here;
use crate::output::shown as shown_text;
use crate::run::environment;
use crate::run::reference::is_step;
use crate::view::step_names::StepNames;

/// Most items that a change of a list names.
const ITEMS_NAMED_MAX: usize = 5;

/// The decision about the result of a changed finished step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decided {
    Keep,
    Rerun,
}

/// The decisions about a changed step and the changes of its scopes.
#[derive(Debug, Clone, Default)]
struct Decisions {
    step: Option<Decided>,
    within: Vec<Option<Decided>>,
}

/// The choice of a person about finished results: `--keep-finished` and `--rerun-changed`.
#[derive(Debug, Clone, Default)]
pub(super) struct FinishedChoice {
    /// The steps of `--keep-finished`; no step for all others.
    keep: Option<BTreeSet<String>>,
    /// The steps of `--rerun-changed`; no step for all others.
    rerun: Option<BTreeSet<String>>,
}

impl FinishedChoice {
    pub(super) fn of(args: &ResumeArgs) -> Self {
        let named = |steps: &Option<Vec<String>>| {
            let steps = steps.as_ref()?.iter().filter(|step| !step.is_empty());
            Some(steps.cloned().collect())
        };
        Self { keep: named(&args.keep_finished), rerun: named(&args.rerun_changed) }
    }

    pub(super) fn is_made(&self) -> bool {
        self.keep.is_some() || self.rerun.is_some()
    }

    /// Returns the decision about a step, by the options that name the step.
    fn by_name(&self, is_named: impl Fn(&str) -> bool) -> Option<Decided> {
        let names = |named: &Option<BTreeSet<String>>| {
            named.as_ref().is_some_and(|named| named.iter().any(|name| is_named(name)))
        };
        let kept = names(&self.keep).then_some(Decided::Keep);
        kept.or(names(&self.rerun).then_some(Decided::Rerun))
    }

    /// Returns the decision about all steps without a decision by name.
    fn about_others(&self) -> Option<Decided> {
        let is_bare = |named: &Option<BTreeSet<String>>| named.as_ref().is_some_and(BTreeSet::is_empty);
        let kept = is_bare(&self.keep).then_some(Decided::Keep);
        kept.or(is_bare(&self.rerun).then_some(Decided::Rerun))
    }

    /// Refuses contradictions, and steps without a finished result at stake.
    pub(super) fn check(&self, rows: &[Row]) -> Result<(), Error> {
        let [keep, rerun] = [&self.keep, &self.rerun].map(|named| named.clone().unwrap_or_default());
        if let Some(both) = rows.iter().find_map(|row| row.in_both(&keep, &rerun)) {
            return Err(Error::usage(
                format!("step `{both}` is in both `--keep-finished` and `--rerun-changed`"),
                "name the step in one option",
            ));
        }
        if self.keep.as_ref().is_some_and(BTreeSet::is_empty)
            && self.rerun.as_ref().is_some_and(BTreeSet::is_empty)
        {
            return Err(Error::usage(
                "both `--keep-finished` and `--rerun-changed` select all changed steps",
                "name steps in one of the options: `--keep-finished=STEP`",
            ));
        }
        let is_row = |step: &&String| rows.iter().any(|row| row.is_at_stake() && row.has(step));
        for named in [&keep, &rerun] {
            let in_part = |row: &&Row| {
                let is_whole = row.change.kind == ChangeKind::Within || row.is_named(named);
                !is_whole && named.iter().any(|step| row.has(step))
            };
            if let Some(row) = rows.iter().filter(|row| row.is_at_stake()).find(in_part) {
                let step = &row.change.step;
                return Err(Error::usage(
                    format!("the file changes more results of step `{step}` than the named"),
                    format!("name `{step}`, for all of its changed results"),
                ));
            }
        }
        match keep.iter().chain(&rerun).find(|step| !is_row(step)) {
            None => Ok(()),
            Some(step) => {
                let changed = rows.iter().filter(|row| row.is_at_stake());
                let changed: Vec<String> = changed.map(|row| format!("`{}`", row.change.step)).collect();
                let hint = match changed.is_empty() {
                    true => "the file changes no finished result; `--from STEP` reruns a step".to_owned(),
                    false => format!("the file changes results of {}", changed.join(", ")),
                };
                Err(Error::usage(format!("step `{step}` has no finished result that the file changes"), hint))
            }
        }
    }
}

/// A changed step, and the results at stake.
pub(super) struct Row {
    change: StepChange,
    /// The changes of the scopes of an opener.
    within: Vec<InnerChange>,
    at_stake: Option<String>,
}

impl Row {
    /// Returns whether a name is that of the step, or the path of a changed step of its scopes.
    fn has(&self, name: &str) -> bool {
        let is_inner = |inner: &InnerChange| is_step(&inner.scope, inner.step.as_str(), name);
        self.change.step.as_str() == name || self.within.iter().any(is_inner)
    }

    /// Returns whether these names include the step.
    fn is_named(&self, names: &BTreeSet<String>) -> bool {
        names.contains(self.change.step.as_str())
    }

    /// Returns the step that both sets name.
    fn in_both<'n>(&self, these: &'n BTreeSet<String>, those: &BTreeSet<String>) -> Option<&'n str> {
        let is_inner = |name: &&String, inner: &InnerChange| {
            let is = |name: &str| is_step(&inner.scope, inner.step.as_str(), name);
            is(name) && those.iter().any(|other| is(other))
        };
        let is_own = |name: &&String| self.change.step.as_str() == name.as_str() && those.contains(*name);
        let mut both =
            these.iter().filter(|name| is_own(name) || self.within.iter().any(|inner| is_inner(name, inner)));
        both.next().map(String::as_str)
    }

    /// Names the changed and added steps of the scopes by their paths, each in its first scope.
    fn inner_steps(&self, names: &StepNames) -> String {
        let mut paths: BTreeMap<&StepId, Vec<String>> = BTreeMap::new();
        for InnerChange { scope, step, .. } in &self.within {
            paths.entry(step).or_default().push(names.called(scope, step.as_str()));
        }
        let told = paths.into_values().map(|paths| match paths.as_slice() {
            [first, rest @ ..] if !rest.is_empty() => format!("{first} and {} more", rest.len()),
            _ => paths.concat(),
        });
        told.collect::<Vec<_>>().join(", ")
    }

    /// Returns whether the scopes are entered again, after a decision: the file lists other items, or finished scopes
    /// have new steps. A kept result of joined scopes excludes another list.
    fn enters(&self, decided: Option<Decided>) -> bool {
        let keeps = decided == Some(Decided::Keep);
        if self.change.kind == ChangeKind::Relisted {
            return !(self.change.touches_finished && keeps);
        }
        self.within.iter().any(|inner| match inner.kind {
            InnerChangeKind::Altered => false,
            InnerChangeKind::Relisted | InnerChangeKind::Removed => !keeps,
            InnerChangeKind::Added | InnerChangeKind::RelistedOpen => true,
        })
    }

    /// Returns the requests for the scopes, after the decisions.
    fn requests(&self, decisions: &Decisions) -> impl Iterator<Item = RerunRequest> {
        let decided = self.within.iter().zip(&decisions.within);
        decided.filter_map(move |(InnerChange { scope, step, kind }, decided)| {
            let keeps = *decided == Some(Decided::Keep);
            let kind = match kind {
                InnerChangeKind::Altered | InnerChangeKind::Relisted | InnerChangeKind::Removed if keeps => {
                    return None;
                }
                InnerChangeKind::Added if keeps => RerunKind::Insert,
                InnerChangeKind::Altered => RerunKind::Rerun,
                InnerChangeKind::Added => RerunKind::Add,
                InnerChangeKind::Relisted | InnerChangeKind::RelistedOpen | InnerChangeKind::Removed => {
                    RerunKind::Relist
                }
            };
            Some(RerunRequest {
                scope: scope.clone(),
                step: step.clone(),
                kind,
                cause: RequestCause::DefinitionChanged,
            })
        })
    }

    fn is_at_stake(&self) -> bool {
        let is_finished = |inner: &InnerChange| inner.kind != InnerChangeKind::RelistedOpen;
        self.change.touches_finished || self.within.iter().any(is_finished)
    }

    /// Returns the change in words.
    fn what(&self, edit: Edit<'_>) -> String {
        let changed = edit.changed;
        let id = self.change.step.as_str();
        let child = changed.step(id).and_then(|step| step.work.child());
        let file = child.map(|child| format!("; it runs {}", child.file())).unwrap_or_default();
        let is_list = |inner: &InnerChange| {
            matches!(inner.kind, InnerChangeKind::Relisted | InnerChangeKind::RelistedOpen)
        };
        match &self.change.kind {
            ChangeKind::Added => match edit.only_removed() {
                Some(old) => format!("is new; if it is {old}, write `renamed_from: {old}`"),
                None => "is new".to_owned(),
            },
            ChangeKind::Removed => "is gone".to_owned(),
            ChangeKind::Altered => match edit.other_needs(id).or_else(|| edit.other_inner_steps(id)) {
                Some(told) => told,
                None => format!("has another definition{file}"),
            },
            ChangeKind::Within if self.within.is_empty() => {
                format!("has another definition in unfinished steps{file}")
            }
            ChangeKind::Within if self.within.iter().all(is_list) => {
                let inner: BTreeSet<&str> = self.within.iter().map(|inner| inner.step.as_str()).collect();
                let items = inner.into_iter().map(|step| format!("{step}{}", edit.other_items(step)));
                format!("has another list of items in {}{file}", items.collect::<Vec<_>>().join(", "))
            }
            ChangeKind::Within if self.within.iter().all(|inner| inner.kind == InnerChangeKind::Removed) => {
                format!("removes {}{file}", self.inner_steps(&edit.names()))
            }
            ChangeKind::Within => {
                format!("has another definition in {}{file}", self.inner_steps(&edit.names()))
            }
            ChangeKind::Relisted if self.within.is_empty() => {
                format!("has another list of items{}", edit.other_items(id))
            }
            ChangeKind::Relisted => {
                let inner = self.inner_steps(&edit.names());
                format!(
                    "has another definition in {inner}, and another list of items{}",
                    edit.other_items(id)
                )
            }
            ChangeKind::Rerouted { .. } => "has another route".to_owned(),
            ChangeKind::Reordered(before) => format!("now follows step {before}, which is not finished"),
        }
    }
}

/// A workflow file before and after an edit.
#[derive(Debug, Clone, Copy)]
struct Edit<'a> {
    before: &'a Workflow,
    changed: &'a Workflow,
}

impl Edit<'_> {
    fn names(self) -> StepNames {
        StepNames::of(self.changed)
    }

    /// Returns the removed step if exactly one step of the main scope is removed and one is added.
    fn only_removed(self) -> Option<String> {
        let beyond = |these: &Workflow, those: &Workflow| {
            let ids = these.steps().iter().map(|step| step.id.clone());
            let mut beyond = ids.filter(|id| those.steps().iter().all(|step| step.id != *id));
            beyond.next().filter(|_| beyond.next().is_none())
        };
        beyond(self.changed, self.before).and(beyond(self.before, self.changed))
    }

    /// Describes the new steps with `idempotent: false` and the removed steps of the same body: a step with another id and no
    /// `renamed_from` takes effect again, whatever a person chooses about the gone step.
    fn repeats(self) -> Vec<String> {
        let mut levels = vec![(String::new(), self.before.body(), self.changed.body())];
        let mut lines = Vec::new();
        while let Some((path, before, changed)) = levels.pop() {
            let twin = |body: &Body, id: &str| body.steps().iter().position(|step| step.id == id);
            let gone = before.steps().iter().filter(|step| twin(changed, &step.id).is_none());
            let gone: Vec<&str> = gone.map(|step| step.id.as_str()).collect();
            for step in changed.steps() {
                let Step { id, idempotent, work, .. } = step;
                match twin(before, id) {
                    Some(place) => {
                        let bodies = before.steps()[place].work.body().zip(work.body());
                        levels.extend(bodies.map(|(then, now)| (format!("{path}{id}/"), then, now)));
                    }
                    None if *idempotent || gone.is_empty() => {}
                    None => lines.push(format!(
                        "  ! step {path}{id} is NOT IDEMPOTENT and WILL RUN; if it is {}, write {} in it",
                        gone.join(" or "),
                        gone.iter()
                            .map(|id| format!("`renamed_from: {id}`"))
                            .collect::<Vec<_>>()
                            .join(" or "),
                    )),
                }
            }
        }
        lines
    }

    /// Returns the change of the needs of a step in words, if they changed.
    fn other_needs(self, step: &str) -> Option<String> {
        let needs = |workflow: &Workflow| {
            let mut needs = workflow.step(step)?.needs.clone();
            needs.sort_unstable();
            Some(needs)
        };
        let told =
            |needs: Vec<String>| if needs.is_empty() { "nothing".to_owned() } else { needs.join(", ") };
        let (then, now) = (needs(self.before)?, needs(self.changed)?);
        (then != now).then(|| format!("needs {}, before {}", told(now), told(then)))
    }

    /// Names the added and the removed steps of a group, of the items or of the included file of a step, if there are any.
    fn other_inner_steps(self, step: &str) -> Option<String> {
        let ids = |workflow: &Workflow| {
            let step = workflow.step(step)?;
            let body = step.work.body()?;
            Some(body.steps().iter().map(|step| step.id.clone()).collect::<Vec<_>>())
        };
        let (then, now) = (ids(self.before)?, ids(self.changed)?);
        let beyond = |these: &[String], those: &[String], verb: &str| {
            let steps: Vec<&str> =
                these.iter().filter(|id| !those.contains(id)).map(String::as_str).collect();
            (!steps.is_empty()).then(|| format!("{verb} {}", steps.join(", ")))
        };
        let told: Vec<String> =
            beyond(&then, &now, "removes").into_iter().chain(beyond(&now, &then, "adds")).collect();
        (!told.is_empty()).then(|| told.join(" and "))
    }

    /// Returns the path of the only edited file, if it is an included file.
    fn included(self) -> Option<PathBuf> {
        let ((before, then), (now, texts)) = (separated(self.before.text()), separated(self.changed.text()));
        let mut edited = texts.into_iter().filter(|text| !then.contains(text));
        let (only, _) = edited.next().filter(|_| before == now)?;
        edited.next().is_none().then(|| PathBuf::from(only))
    }

    /// Names the added and the dropped items of a list in the file.
    fn other_items(self, step: &str) -> String {
        let items = |workflow: &Workflow| {
            let foreach = workflow.step(step)?.work.foreach()?;
            let items = foreach.items.listed()?;
            Some(items.iter().map(|item| foreach.default_key(item)).collect::<Vec<_>>())
        };
        let Some((then, now)) = items(self.before).zip(items(self.changed)) else { return String::new() };
        let beyond = |these: &[String], those: &[String]| {
            let found: Vec<&str> =
                these.iter().filter(|item| !those.contains(item)).map(String::as_str).collect();
            let more = found.len().saturating_sub(ITEMS_NAMED_MAX);
            let named = found.iter().take(ITEMS_NAMED_MAX).map(|item| shown_text(item)).collect::<Vec<_>>();
            (
                named.join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() },
                found.len(),
            )
        };
        let told = [("adds", beyond(&now, &then)), ("drops", beyond(&then, &now))];
        let told = told
            .iter()
            .filter(|(_, (_, count))| *count > 0)
            .map(|(verb, (names, _))| format!("{verb} {names}"));
        let told: Vec<String> = told.collect();
        if told.is_empty() { String::new() } else { format!(": it {}", told.join(", and ")) }
    }
}

/// Writes the rows as a table: step, change, results at stake.
fn table(rows: &[Row], edit: Edit<'_>) -> Vec<String> {
    let whats: Vec<String> = rows.iter().map(|row| row.what(edit)).collect();
    let widest = |texts: &mut dyn Iterator<Item = usize>| texts.max().unwrap_or_default();
    let step_width = widest(&mut rows.iter().map(|row| row.change.step.as_str().chars().count()));
    let what_width = widest(&mut whats.iter().map(|what| what.chars().count()));
    let line = |(row, what): (&Row, &String)| {
        let sign = match row.change.kind {
            ChangeKind::Added => '+',
            ChangeKind::Removed => '-',
            ChangeKind::Reordered(_) => '>',
            _ => '~',
        };
        let (step, at_stake) = (row.change.step.as_str(), row.at_stake.as_deref().unwrap_or_default());
        let line = format!("  {sign} step {step:step_width$} {what:what_width$}  {at_stake}");
        line.trim_end().to_owned()
    };
    rows.iter().zip(&whats).map(line).chain(edit.repeats()).collect()
}

/// A changed file, and the run that adopts the file.
pub(super) struct Changed<'a> {
    pub(super) store: &'a dyn Store,
    pub(super) snapshot: &'a Snapshot,
    pub(super) position: &'a Position,
    pub(super) file: &'a Path,
    pub(super) choice: &'a Choice,
    /// The result of `changed_within`.
    pub(super) within: BTreeMap<StepId, Vec<InnerChange>>,
}

/// Compares the definition in force with a changed file, and adopts the file as a person chose.
///
/// # Errors
/// [`Error::Changed`]: finished results are at stake without a choice. [`Error::Usage`]: the choice names a step without
/// a result at stake.
pub(super) async fn adopt(about: Changed<'_>, own: Chosen, changed: Workflow) -> Result<Chosen, Error> {
    let Changed { store, snapshot, position, file, choice, mut within } = about;
    let shape = shape_of(&changed, environment::parallel())?;
    let earlier = EarlierResults::of(store, snapshot, &shape).await?;
    for changes in within.values_mut() {
        for at in (0..changes.len()).rev() {
            let InnerChange { scope, step, kind } = &changes[at];
            if *kind == InnerChangeKind::Altered && earlier.has(scope, step).await? {
                changes.remove(at);
            }
        }
    }
    let mut names: BTreeSet<StepId> = within.keys().cloned().collect();
    let mut rows = Vec::new();
    for change in changes(&own.shape, position, &snapshot.definition, (&shape, &names)) {
        let is_altered = change.touches_finished && change.kind == ChangeKind::Altered;
        if is_altered && earlier.has(&ScopePath::main(), &change.step).await? {
            names.insert(change.step);
            continue;
        }
        let within = within.get(&change.step).cloned().unwrap_or_default();
        rows.push(Row { change, within, at_stake: None });
    }
    if rows.iter().any(Row::is_at_stake) {
        let results = FinishedResults::of(store, snapshot, &own).await?;
        for row in rows.iter_mut().filter(|row| row.is_at_stake()) {
            row.at_stake = Some(results.of_step(&row.change.step, &row.within).await?);
        }
    }
    choice.finished.check(&rows)?;
    let edit = Edit { before: &own.workflow, changed: &changed };
    let diff = table(&rows, edit);
    let decided: Vec<Decisions> = rows.iter().map(|row| decide(choice, row)).collect();
    let edited = edit.included().map_or_else(|| file.to_owned(), |name| file.with_file_name(name));
    let run = &snapshot.entry.summary.run;
    let is_open = rows.iter().zip(&decided).any(|(row, decided)| row.is_at_stake() && decided.step.is_none());
    if is_open && !choice.restart && !choice.looks && !choice.forks {
        let args = Box::new(choice.args.clone());
        return Err(Error::Changed { file: relative_to_here(&edited), run: run.clone(), args, diff });
    }
    let is_touched = rows.iter().any(Row::is_at_stake);
    let is_chosen = choice.with.is_some() || choice.finished.is_made();
    let is_over = snapshot.ended.is_some() && !choice.restart && !choice.forks;
    let is_requested = choice.args.from.is_some() || choice.retries;
    let words =
        Words { choice, file: shown(file), edited: shown(&edited), run: run.as_str(), diff: diff.join("\n") };
    if is_over && !rows.is_empty() && !is_touched && !is_chosen && !is_requested && !choice.reruns {
        return Ok(Chosen { awaits_rerun: true, ..own.with_note(words.after_the_end()) });
    }
    let is_kept = decided.iter().filter_map(|row| row.step).all(|row| row == Decided::Keep) && !is_open;
    let note = match (is_touched, is_kept) {
        // Without a request, the engine adopts the file only if evidence is lost.
        (false, _) if is_over && rows.is_empty() && !is_requested => words.after_the_end(),
        (false, _) => words.adopting(Effect::Untouched),
        (true, true) => words.adopting(Effect::Kept),
        (true, false) => words.adopting(Effect::Rerun),
    };
    let mut definition = shape.definition(Some(changed.text().to_owned()));
    definition.accepted = accepted(snapshot, (&own.shape, &shape), rows.iter().zip(&decided));
    let (mut kept, mut entered) = (BTreeSet::new(), BTreeSet::new());
    let (mut rerun, mut redo) = (Vec::new(), false);
    for (row, decided) in rows.iter().zip(&decided) {
        if row.enters(decided.step) {
            entered.insert(row.change.step.clone());
        }
        rerun.extend(row.requests(decided));
        if decided.step == Some(Decided::Keep) {
            kept.insert(row.change.step.clone());
        } else {
            redo |= row.change.touches_finished;
        }
    }
    let before = own.shape.as_careful_as(&shape);
    let adoption = Adoption { before, definition, redo, kept, rerun, within: names, entered };
    let adoption = Some(adoption);
    let path = own.path;
    Ok(Chosen { workflow: changed, shape, adoption, path, notes: vec![note], awaits_rerun: false })
}

/// The results of steps with a kept result and their first definition again.
struct EarlierResults<'a> {
    store: &'a dyn Store,
    snapshot: &'a Snapshot,
    shape: &'a Shape,
    /// The resume that adopted the definition in force.
    adopted: u64,
}

impl<'a> EarlierResults<'a> {
    async fn of(store: &'a dyn Store, snapshot: &'a Snapshot, shape: &'a Shape) -> Result<Self, Error> {
        let newest = snapshot.newest().header();
        let seq = snapshot.newest().position().ok().and_then(|position| position.definition);
        let adopted = match seq {
            Some(seq) => store.load(&newest.run, &ScopePath::main(), seq).await?.header().resume,
            None => 0,
        };
        Ok(Self { store, snapshot, shape, adopted })
    }

    /// Returns whether the file has an accepted definition of a step, and the result is older than the definition in force.
    async fn has(&self, scope: &ScopePath, step: &StepId) -> Result<bool, Error> {
        let accepted = self.snapshot.definition.accepted.get(&step_path(scope, step));
        let now = self.shape.of_scope(scope).and_then(|shape| shape.step(step.as_str()));
        if !accepted.zip(now).is_some_and(|(accepted, now)| accepted.contains(&now.fingerprint)) {
            return Ok(false);
        }
        let run = &self.snapshot.entry.summary.run;
        let newest = self.store.newest(run, scope).await?;
        let history = self.store.history(run, scope, newest.header().seq).await?;
        let is_end = |phase: &Phase| matches!(phase, Phase::Completed(_) | Phase::Failed(_));
        let mut headers = history.iter().map(Record::header);
        let end = headers.find(|header| header.step.as_ref() == Some(step) && is_end(&header.phase));
        Ok(end.is_some_and(|end| end.resume < self.adopted))
    }
}

/// Decides about a row: as a person chose; `--with FILE` without `--retry-failed` runs changed steps again.
fn decide(choice: &Choice, row: &Row) -> Decisions {
    if !row.is_at_stake() || choice.restart {
        return Decisions { step: None, within: vec![None; row.within.len()] };
    }
    // A retry of failed items says nothing about the finished items.
    let is_inside = matches!(row.change.kind, ChangeKind::Within | ChangeKind::Relisted);
    let is_open = choice.retries && is_inside && !row.change.touches_finished;
    let of_file = (choice.with.is_some() && !is_open).then_some(Decided::Rerun);
    let others = choice.finished.about_others().or(of_file);
    let own = choice.finished.by_name(|name| name == row.change.step.as_str()).or(others);
    if row.change.kind != ChangeKind::Within || row.within.is_empty() {
        return Decisions { step: own, within: vec![own; row.within.len()] };
    }
    let of_inner = |inner: &InnerChange| {
        choice.finished.by_name(|name| is_step(&inner.scope, inner.step.as_str(), name)).or(own)
    };
    let within: Vec<_> = row.within.iter().map(of_inner).collect();
    let finished = row.within.iter().zip(&within);
    let finished = finished.filter(|(inner, _)| inner.kind != InnerChangeKind::RelistedOpen);
    let all: Vec<_> = finished.map(|(_, decided)| *decided).collect();
    let step = match () {
        () if all.is_empty() => own,
        () if all.contains(&None) => None,
        () if all.contains(&Some(Decided::Rerun)) => Some(Decided::Rerun),
        () => Some(Decided::Keep),
    };
    Decisions { step, within }
}

/// Returns the accepted older fingerprints: the accepted ones so far, and the fingerprints of kept steps.
fn accepted<'r>(
    snapshot: &Snapshot,
    (before, after): (&Shape, &Shape),
    rows: impl Iterator<Item = (&'r Row, &'r Decisions)>,
) -> BTreeMap<String, BTreeSet<waypost::Digest>> {
    let Definition { accepted, .. } = &snapshot.definition;
    let mut accepted = accepted.clone();
    let (mut kept, mut rerun) = (Vec::new(), Vec::new());
    for (row, decided) in rows {
        let main = (ScopePath::main(), row.change.step.clone());
        let inner = row.within.iter().zip(&decided.within);
        // The definition of an opener contains its inner steps. An opener of an added step is entered again.
        let inner = inner.flat_map(|(InnerChange { scope, step, kind }, decided)| {
            let adds = matches!(kind, InnerChangeKind::Added | InnerChangeKind::RelistedOpen);
            let of_openers = if adds { Some(Decided::Rerun) } else { *decided };
            let around = std::iter::successors(Some(scope.clone()), ScopePath::parent);
            let openers = around.filter_map(move |below| {
                let (above, (name, _)) = (below.parent()?, below.opened_by()?);
                let shape = before.of_scope(&above)?;
                let opener = shape.steps()[shape.opener(&name)?].id.clone();
                (!above.is_main()).then_some(((above, opener), of_openers))
            });
            [((scope.clone(), step.clone()), *decided)].into_iter().chain(openers)
        });
        for (at, decided) in inner.chain([(main, decided.step)]) {
            match decided {
                Some(Decided::Keep) => kept.push(at),
                Some(Decided::Rerun) => rerun.push(at),
                None => {}
            }
        }
    }
    for (scope, step) in kept {
        if let Some(old) = before.of_scope(&scope).and_then(|shape| shape.step(step.as_str())) {
            accepted.entry(step_path(&scope, &step)).or_default().insert(old.fingerprint);
        }
    }
    for (scope, step) in rerun {
        accepted.remove(&step_path(&scope, &step));
    }
    accepted.retain(|path, _| has_step(after, path));
    accepted
}

/// Returns whether a graph has a step with this path.
fn has_step(shape: &Shape, path: &str) -> bool {
    let mut parts = path.split('/').peekable();
    let mut level = Some(shape);
    while let Some(part) = parts.next() {
        let Some(shape) = level else { return false };
        if parts.peek().is_none() {
            return shape.step(part).is_some();
        }
        let name = StepId::new(part).ok();
        level = name.and_then(|name| shape.children_named(&name).map(|(_, children)| &*children.shape));
    }
    false
}

/// The words about an adopted file.
struct Words<'a> {
    choice: &'a Choice,
    /// The workflow file.
    file: String,
    /// The changed file: the workflow file, or an included file.
    edited: String,
    run: &'a str,
    diff: String,
}

/// The effect of a changed file on finished results.
enum Effect {
    Untouched,
    Kept,
    Rerun,
}

impl Words<'_> {
    fn differs(&self) -> &'static str {
        if self.choice.with.is_some() || self.choice.forks { "differs" } else { "changed" }
    }

    fn after_the_end(&self) -> String {
        let Self { file, edited, run, diff, .. } = self;
        let differs = self.differs();
        if diff.is_empty() {
            return format!("{edited} {differs}, without effect on any step.");
        }
        format!(
            "{edited} {differs}, without effect on finished results, and the run has ended:\n\
             {diff}\n\
             `waypost resume {run} --with {file}` adopts the file."
        )
    }

    fn adopting(&self, results: Effect) -> String {
        let Self { choice, edited: file, run, diff, .. } = self;
        let differs = self.differs();
        match results {
            _ if diff.is_empty() => {
                format!("{file} {differs}, without effect on any step; adopting the file.")
            }
            Effect::Untouched => {
                format!("{file} {differs}, without effect on finished results; adopting the file:\n{diff}")
            }
            _ if choice.restart => format!("{file} {differs}; starting over with the new file:\n{diff}"),
            _ if choice.looks => format!(
                "{file} {differs}, with effect on finished results, so a resume asks first:\n\
                 {diff}\n\
                 The plan assumes `waypost resume {run} --rerun-changed`; `--keep-finished` keeps the \
                 results, `--keep-definition` ignores the file."
            ),
            Effect::Kept => {
                format!("{file} {differs}; adopting the file, and keeping the results of:\n{diff}")
            }
            Effect::Rerun => {
                format!("{file} {differs}; adopting the file, and rerunning the affected steps:\n{diff}")
            }
        }
    }
}
