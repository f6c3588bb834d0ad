//! Which definition a resume goes on with: the run's own copy, or a workflow file that changed meanwhile.
//!
//! Comments, order, names, timeouts and retries are not in a fingerprint: a file that differs in these is adopted
//! without a question. A change of steps that are not finished is shown and adopted. A change of what is finished is the
//! user's to decide.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use waypost::change::{Change, ChangeKind, carry_over, changes};
use waypost::engine::{Adoption, Snapshot};
use waypost::plan::{Plan, Verdicts, plan};
use waypost::record::{Definition, Position, RunRecord};
use waypost::shape::Shape;
use waypost::store::Store;
use waypost_workflow::file::Workflow;
use waypost_workflow::program::shape_of;

use crate::cli::ResumeArgs;
use crate::commands::{Context, near_here};
use crate::error::Error;
use crate::place;
use crate::surroundings;

/// What the user said about a changed file.
#[derive(Debug, Clone, Default)]
pub(crate) struct Choice {
    with: Option<PathBuf>,
    keep: bool,
    restart: bool,
}

impl Choice {
    /// Takes it from the options of `resume`.
    pub(crate) fn of(args: &ResumeArgs) -> Self {
        Self { with: args.with.clone(), keep: args.keep_definition, restart: args.restart }
    }
}

/// What a resume goes on with.
#[derive(Debug)]
pub(crate) struct Chosen {
    pub(crate) workflow: Workflow,
    pub(crate) shape: Shape,
    /// How the definition in force becomes this one, where it is another.
    pub(crate) adoption: Option<Adoption>,
    /// What the user should know.
    notes: Vec<String>,
}

impl Chosen {
    /// Goes on with what was frozen when the run was made.
    pub(crate) fn frozen(store: &dyn Store, record: &RunRecord) -> Result<Self, Error> {
        own_copy(store, record, &record.definition)
    }

    /// Goes on with what is in force by the newest sound record.
    pub(crate) fn in_force(store: &dyn Store, snapshot: &Snapshot) -> Result<Self, Error> {
        own_copy(store, snapshot.entry.record.record(), &snapshot.definition)
    }

    /// Returns what a resume with it would do.
    pub(crate) async fn plan(
        &self,
        store: &dyn Store,
        snapshot: &Snapshot,
        verdicts: &Verdicts,
        now: Timestamp,
    ) -> Result<Plan, Error> {
        let mut effective = snapshot.effective(store, &self.shape).await?;
        if let Some(adoption) = &self.adoption {
            for branch in effective.iter_mut().filter(|branch| branch.branch.is_main()) {
                let carried =
                    carry_over(&adoption.before, &branch.position, &snapshot.definition, &self.shape);
                branch.position = carried.unwrap_or_else(|_| std::mem::take(&mut branch.position));
            }
        }
        Ok(plan(&self.shape, &effective, verdicts, now))
    }

    /// Says what the user should know.
    pub(crate) fn tell(&self, context: &Context) {
        self.notes.iter().for_each(|note| context.output.note(note));
    }

    fn with_note(mut self, note: String) -> Self {
        self.notes.push(note);
        self
    }
}

/// Chooses what a resume of a run goes on with.
///
/// # Errors
/// [`Error::Changed`] if the file changed in what is finished, and nobody said what to do about it.
pub(crate) fn choose(store: &dyn Store, snapshot: &Snapshot, choice: &Choice) -> Result<Chosen, Error> {
    let frozen = snapshot.entry.record.record();
    let own = own_copy(store, frozen, &snapshot.definition)?;
    // What has ended needs no definition any more.
    if choice.keep || (snapshot.ended.is_some() && !choice.restart) {
        return Ok(own);
    }
    let recorded = frozen.path.as_deref().map(|path| place::from_home(store.home(), path));
    let file = match (&choice.with, recorded) {
        (Some(file), _) => file.clone(),
        (None, Some(file)) if file.exists() => file,
        (None, Some(file)) => {
            let note = format!("{} is not there; going on with the run's own copy of it.", shown(&file));
            return Ok(own.with_note(note));
        }
        (None, None) => return Ok(own),
    };
    let changed = Workflow::read(&near_here(&file))?;
    if snapshot.definition.text.as_deref() == Some(changed.text()) {
        return Ok(own);
    }
    let position = snapshot.newest().position().unwrap_or_default();
    compare(snapshot, own, changed, &position, &file, choice)
}

fn compare(
    snapshot: &Snapshot,
    own: Chosen,
    changed: Workflow,
    position: &Position,
    file: &Path,
    choice: &Choice,
) -> Result<Chosen, Error> {
    let shape = shape_of(&changed, surroundings::cores())?;
    let changes = changes(&own.shape, position, &snapshot.definition, &shape);
    let diff: Vec<String> = changes.iter().map(line).collect();
    let touches_finished = changes.iter().any(|change| change.touches_finished);
    if touches_finished && !choice.restart {
        return Err(Error::Changed { file: near_here(file), run: snapshot.entry.summary.run.clone(), diff });
    }
    let differs = if choice.with.is_some() { "differs" } else { "changed" };
    let note = if diff.is_empty() {
        format!("{} {differs}, but not in what any step does; going on with it.", shown(file))
    } else if touches_finished {
        format!("{} {differs}; starting over with it:\n{}", shown(file), diff.join("\n"))
    } else {
        format!(
            "{} {differs}, but not in what is finished; going on with it:\n{}",
            shown(file),
            diff.join("\n")
        )
    };
    let definition = shape.definition(Some(changed.text().to_owned()));
    let adoption = Some(Adoption { before: own.shape, definition });
    Ok(Chosen { workflow: changed, shape, adoption, notes: vec![note] })
}

fn own_copy(store: &dyn Store, record: &RunRecord, definition: &Definition) -> Result<Chosen, Error> {
    let path = record.path.as_deref().map_or_else(
        || PathBuf::from(format!("{}.yaml", record.workflow)),
        |path| place::from_home(store.home(), path),
    );
    let Some(text) = &definition.text else {
        return Err(Error::usage(
            format!("run {} was not made from a workflow file", record.run),
            "only the program that made it can go on with it",
        ));
    };
    let workflow = Workflow::parse(text, &path).map_err(|error| Error::File(Box::new(error)))?;
    let shape = shape_of(&workflow, surroundings::cores())?;
    Ok(Chosen { workflow, shape, adoption: None, notes: Vec::new() })
}

fn line(change: &Change) -> String {
    let finished = if change.touches_finished { ", which is finished" } else { "" };
    match &change.kind {
        ChangeKind::Added => format!("  + step {} is new", change.step),
        ChangeKind::Removed => format!("  - step {} is gone{finished}", change.step),
        ChangeKind::Altered => format!("  ~ step {} does something else{finished}", change.step),
        ChangeKind::Reordered(before) => {
            format!("  > step {}{finished}, comes after step {before} now, which is not", change.step)
        }
    }
}

fn shown(path: &Path) -> String {
    near_here(path).display().to_string()
}
