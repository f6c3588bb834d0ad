//! Failed items of a step beyond its failure limits, shown next to the failure count.

use std::fmt::Write as _;

use waypost::record::{End, Failure, FailureKind, Header, Record};
use waypost::store::{Scan, Scanned, Store, StoreExt as _};
use waypost::{RunId, ScopePath, StepId};
use waypost_workflow::file::Workflow;

use crate::error::Error;
use crate::format::exit_code;
use crate::output::{Paint, log_lines, shown};
use crate::run::dead_letters;
use crate::view::step_names::called;
use crate::view::{FailedItem, step_of};

/// Most failed items on a screen: enough to compare their errors.
pub(crate) const SHOWN_MAX: usize = 3;

/// A failed step of a run.
pub(crate) struct FailedStep<'a> {
    pub(crate) store: &'a dyn Store,
    pub(crate) run: &'a RunId,
    pub(crate) workflow: Option<&'a Workflow>,
    pub(crate) scope: &'a ScopePath,
    pub(crate) step: &'a StepId,
    pub(crate) kind: FailureKind,
}

impl FailedStep<'_> {
    /// Returns the first failed item of a step beyond its failure limits, as [`items`](Self::items).
    pub(crate) async fn first_item(&self) -> Result<Option<FailedItem>, Error> {
        Ok(self.items().await?.into_iter().next())
    }

    /// Returns the first failed items of a step beyond its failure limits, at most [`SHOWN_MAX`]. With more
    /// failures than a page of records, the first of the page are returned.
    pub(crate) async fn items(&self) -> Result<Vec<FailedItem>, Error> {
        let Self { store, run, workflow, scope, step, kind } = *self;
        if kind != FailureKind::Limit {
            return Ok(Vec::new());
        }
        let Some(opened) = dead_letters::opened_at(store, run, scope, step).await? else {
            return Ok(Vec::new());
        };
        let mut scan = Scan { phase: Some("failed"), ..Scan::of(run) };
        loop {
            let page = store.scan(&scan).await?;
            let mut found = self.first_of(&page, opened).await?;
            if !found.is_empty() {
                let is_letter = dead_letters::keeps_letters(workflow, step) && !is_in_hooks(workflow, scope);
                found.iter_mut().for_each(|item| item.is_letter = is_letter);
                return Ok(found);
            }
            match page.next {
                Some(cursor) => scan.cursor = Some(cursor),
                None => return Ok(Vec::new()),
            }
        }
    }

    /// Returns the first still failed items of a page, opened by the step at this seq.
    async fn first_of(&self, page: &Scanned, opened: u64) -> Result<Vec<FailedItem>, Error> {
        let is_item = |header: &&Header| {
            let of_step = header.scope.opened_by().is_some_and(|(opener, _)| opener == *self.step);
            of_step && header.scope.parent().as_ref() == Some(self.scope)
        };
        let headers = page.records.iter().map(Record::header);
        let mut items: Vec<&Header> =
            headers.filter(|header| header.end == Some(End::Failed)).filter(is_item).collect();
        items.sort_by_key(|header| header.created_at);
        let mut found = Vec::new();
        for item in items {
            if found.len() == SHOWN_MAX {
                break;
            }
            let newest = self.store.newest(self.run, &item.scope).await?;
            let origin = newest.position().ok().and_then(|position| position.origin);
            // An item that failed again has an older end too.
            if newest.header().seq != item.seq || origin != Some(opened) {
                continue;
            }
            let cause = dead_letters::cause(self.store, self.run, &newest).await?;
            let failure = cause.header().phase.failure();
            let item = failure.and_then(|failure| {
                FailedItem::of(self.workflow, newest.header(), (cause.header(), failure))
            });
            found.extend(item);
        }
        Ok(found)
    }
}

/// Returns whether a scope is that of a hook, or within a hook: only the step of the hook runs its items again.
fn is_in_hooks(workflow: Option<&Workflow>, scope: &ScopePath) -> bool {
    let Some(workflow) = workflow else { return false };
    let around = std::iter::successors(Some(scope.clone()), ScopePath::parent);
    around.filter_map(|scope| scope.parent().zip(scope.opened_by())).any(|(above, (opener, key))| {
        step_of(workflow, &above, opener.as_str()).is_none_or(|step| {
            let has_hook = step.hooks.iter().any(|hook| hook.on.key() == key);
            step.is_for_hooks() || step.work.foreach().is_none() && has_hook
        })
    })
}

impl FailedItem {
    /// Returns a line about a further item: key and error.
    pub(crate) fn line(&self) -> String {
        let first = self.error.first().map_or("it failed", String::as_str);
        format!("  then: {} failed: {}\n", shown(&self.place), shown(first))
    }

    /// Returns the item's key and error, and the commands to list and retry failed items; each line indented.
    /// `words`: the further words of each command, with a leading space.
    pub(crate) fn told(&self, paint: Paint, run: &str, words: &str) -> String {
        let mut errors = self.error.iter();
        let first = errors.next().map_or("it failed", String::as_str);
        let mut text = format!("  first: {} failed: {}\n", shown(&self.place), shown(first));
        for cause in errors {
            let _ = writeln!(text, "  {} {}", paint.dim("cause:"), shown(cause));
        }
        for line in log_lines(&self.tail) {
            let _ = writeln!(text, "  {} {}", paint.dim("|"), crate::output::actions::harmless(&line));
        }
        if let Some(meaning) = self.exit_code.and_then(exit_code::meaning) {
            let _ = writeln!(text, "  {} {}", paint.cyan("hint:"), shown(&meaning));
        }
        if self.is_letter {
            let _ = writeln!(text, "  all dead letters: waypost dead-letters list {run}{words}");
            let _ = writeln!(text, "  retry with: waypost dead-letters retry {run}{words}");
        }
        text
    }

    fn of(
        workflow: Option<&Workflow>,
        child: &Header,
        (cause, failure): (&Header, &Failure),
    ) -> Option<Self> {
        let (_, key) = child.scope.opened_by()?;
        // The step of an inner item is named with its path.
        let is_item = |scope: &ScopePath| {
            let opener = scope.opened_by().and_then(|(opener, _)| workflow?.step(opener.as_str()));
            opener.is_some_and(|opener| opener.work.foreach().is_some())
        };
        let mut between = std::iter::successors(Some(cause.scope.clone()), ScopePath::parent)
            .take_while(|scope| *scope != child.scope);
        let place = match &cause.step {
            None => format!("item {key}"),
            Some(step) if between.any(|scope| is_item(&scope)) => {
                format!("step {}", called(workflow, &cause.scope, step.as_str()))
            }
            Some(step) => format!("step {step} of item {key}"),
        };
        let tail = failure.ending.log.as_ref().map(|log| log.tail.clone()).unwrap_or_default();
        Some(Self {
            place,
            key,
            scope: child.scope.to_string(),
            step: cause.step.as_ref().map(ToString::to_string),
            error: failure.error.clone(),
            exit_code: failure.ending.exit_code,
            tail,
            is_letter: false,
        })
    }
}
