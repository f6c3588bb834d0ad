//! `waypost events`: what happened, one line each, derived from the records.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Map, Value};
use waypost::events::{self, Cursor, Event};
use waypost::record::{Flaw, RunStatus};
use waypost::store::{Damage, Scan, Store, StoreExt as _};
use waypost::{BranchPath, RunId};

use super::{Context, checkpoints};
use crate::cli::EventsArgs;
use crate::error::Error;
use crate::exit::Exit;
use crate::output::{Output, shown};
use crate::time;

/// How often a run that is followed is looked at: soon for a person, rarely enough to cost nothing.
pub(crate) const FOLLOW_INTERVAL: Duration = Duration::from_millis(300);

pub(crate) async fn events(context: &Context, args: EventsArgs) -> Result<Exit, Error> {
    let after = args.after.as_deref().map(cursor).transpose()?;
    let (store, run) = context.find(args.run.as_deref()).await?;
    let mut reader = Reader::new(store.as_ref(), &run, after);
    loop {
        // Asked first: what is written between the two questions belongs to a run that still works.
        let working = store.run(&run).await?.summary.status == RunStatus::Running;
        let told = reader.read(context).await?;
        if !args.follow || !working {
            if !told && !args.follow && reader.damaged.is_empty() {
                context.output.note("Nothing to print, because no event comes after that cursor.");
            }
            return Ok(Exit::Done);
        }
        tokio::time::sleep(FOLLOW_INTERVAL).await;
    }
}

fn cursor(text: &str) -> Result<Cursor, Error> {
    let wrong =
        |error: events::InvalidCursor| Error::usage(error.to_string(), "give back the `cursor` of an event");
    text.parse().map_err(wrong)
}

/// Reads on where it stopped, branch by branch in the order in which they were opened.
struct Reader<'a> {
    store: &'a dyn Store,
    run: &'a RunId,
    /// The last event printed of each branch.
    printed: Vec<Cursor>,
    /// Checkpoints whose events cannot be told, and that was said.
    damaged: BTreeSet<(BranchPath, u64)>,
    /// Branches before that of `--after` were printed by whoever gives the cursor.
    begin: Option<Cursor>,
}

impl<'a> Reader<'a> {
    fn new(store: &'a dyn Store, run: &'a RunId, begin: Option<Cursor>) -> Self {
        Self { store, run, printed: begin.clone().into_iter().collect(), damaged: BTreeSet::new(), begin }
    }

    /// Prints what is new, and says whether anything was.
    async fn read(&mut self, context: &Context) -> Result<bool, Error> {
        let mut told = false;
        let mut reached = self.begin.is_none();
        for branch in self.branches().await? {
            reached |= self.begin.as_ref().is_some_and(|begin| begin.branch == branch);
            if !reached {
                continue;
            }
            let seen = self.printed.iter().find(|cursor| cursor.branch == branch).cloned();
            let mut scan = Scan {
                branch: Some(branch),
                seq_min: seen.as_ref().map(|cursor| cursor.seq),
                ..Scan::of(self.run)
            };
            loop {
                let page = self.store.scan(&scan).await?;
                let all = page.records.iter().flat_map(events::of);
                for event in all.filter(|event| seen.as_ref().is_none_or(|seen| event.cursor > *seen)) {
                    print(&context.output, &event)?;
                    told = true;
                    self.remember(event.cursor);
                }
                // One that is damaged in one place and sound in another is told.
                let is_told =
                    |damage: &&Damage| page.records.iter().any(|record| record.header().seq == damage.seq);
                let gaps = page.damaged.iter().filter(|damage| !is_told(damage));
                gaps.for_each(|damage| self.tell_of_gap(context, damage));
                match page.next {
                    Some(cursor) => scan.cursor = Some(cursor),
                    None => break,
                }
            }
        }
        Ok(told)
    }

    /// Warns, once, of a checkpoint whose events cannot be told.
    fn tell_of_gap(&mut self, context: &Context, damage: &Damage) {
        let at = checkpoints::reference_of(self.run, damage);
        let what = if damage.flaw == Flaw::Missing { "missing" } else { "damaged" };
        let text = format!(
            "checkpoint {at} is {what}, so its events are not told; `waypost verify {}` says more",
            self.run
        );
        if self.damaged.insert((damage.branch.clone(), damage.seq)) {
            context.output.warn(&context.with_store(&text));
        }
    }

    fn remember(&mut self, cursor: Cursor) {
        match self.printed.iter_mut().find(|known| known.branch == cursor.branch) {
            Some(known) => *known = cursor,
            None => self.printed.push(cursor),
        }
    }

    /// Returns the branches in the order in which they were opened.
    async fn branches(&self) -> Result<Vec<BranchPath>, Error> {
        let mut names = Vec::new();
        let mut scan = Scan { seq_max: Some(1), ..Scan::of(self.run) };
        loop {
            let page = self.store.scan(&scan).await?;
            names.extend(page.records.iter().map(|record| record.header().branch.clone()));
            names.extend(page.damaged.iter().map(|damage| damage.branch.clone()));
            match page.next {
                Some(cursor) => scan.cursor = Some(cursor),
                None => break,
            }
        }
        // A main branch whose first record is damaged or in quarantine is there all the same.
        let main = BranchPath::main();
        if !names.contains(&main) && self.store.newest(self.run, &main).await.is_ok() {
            names.insert(0, main);
        }
        Ok(names)
    }
}

fn print(output: &Output, event: &Event) -> Result<(), Error> {
    if output.json {
        output.line(event)?;
    } else {
        output.answer(&line(event, false))?;
    }
    Ok(())
}

/// Writes an event as one line for people: time, place, name, and what is particular to it. The place has the run where
/// the lines of several follow each other.
pub(crate) fn line(event: &Event, of_many: bool) -> String {
    let run = if of_many { event.run.as_str() } else { "" };
    let at = if of_many && !event.branch.is_main() { "/" } else { "" };
    let mut text = format!("{}  {:<10}", time::utc(event.ts), format!("{run}{at}{}", place(event)));
    let mut rest = match serde_json::to_value(&event.what) {
        Ok(Value::Object(rest)) => rest,
        _ => Map::new(),
    };
    let name = rest.remove("event");
    let name = name.as_ref().and_then(Value::as_str).unwrap_or_default();
    let _ = write!(text, " {name}");
    if let Some(step) = &event.step {
        let _ = write!(text, " {step}");
    }
    if let Some(attempt) = event.attempt.filter(|attempt| *attempt > 1) {
        let _ = write!(text, " attempt={attempt}");
    }
    for (key, value) in &rest {
        match value {
            // What users named keeps its name, whatever it is.
            Value::Object(members) if key == "outputs" => {
                members.iter().for_each(|(name, value)| tell_output(&mut text, name, value));
            }
            value => tell(&mut text, key, value),
        }
    }
    text
}

/// Adds an output to a line: a text as it is, anything else as JSON.
fn tell_output(text: &mut String, name: &str, value: &Value) {
    let told = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
    let _ = write!(text, " {}={}", shown(name), shown(&told));
}

/// Adds a member to a line as `key=value`; what is not so, or not there, is left out.
fn tell(text: &mut String, key: &str, value: &Value) {
    let told = match value {
        Value::Null | Value::Bool(false) => return,
        Value::String(told) => told.clone(),
        Value::Array(items) if items.iter().all(Value::is_string) => {
            items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(": ")
        }
        // A map speaks for itself.
        Value::Object(members) => return members.iter().for_each(|(key, value)| tell(text, key, value)),
        value => value.to_string(),
    };
    let _ = write!(text, " {}={}", shown(key), shown(&told));
}

fn place(event: &Event) -> String {
    if event.branch.is_main() { format!("@{}", event.seq) } else { format!("{}@{}", event.branch, event.seq) }
}
