//! `waypost events`: the events of a run, a line each, derived from the records.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use jiff::Timestamp;
use waypost::events::{self, Cursor, Event};
use waypost::record::{Flaw, Record, RunStatus};
use waypost::store::{Damage, Scan, Store, StoreExt as _};
use waypost::{RunId, ScopePath};

use super::Context;
use crate::cli::EventsArgs;
use crate::error::Error;
use crate::exit::Exit;
use crate::output::Output;
use crate::output::event_line::EventLines;
use crate::run::definition::names;
use crate::view::step_names::StepNames;

/// Poll interval of a followed run: fast for a person, and cheap.
pub(crate) const FOLLOW_INTERVAL: Duration = Duration::from_millis(300);

/// Most records kept in memory during sorting; beyond this limit only their places are kept, and records are
/// read again.
const KEPT_MAX: usize = 20_000;

pub(crate) async fn events(context: &Context, args: EventsArgs) -> Result<Exit, Error> {
    let after = args.after.as_deref().map(cursor).transpose()?;
    let (store, run) = context.find(args.run.as_deref()).await?;
    let names = match context.output.json {
        true => StepNames::default(),
        false => names(store.as_ref(), &run).await,
    };
    let mut reader = Reader::new(store.as_ref(), &run);
    if let Some(after) = after {
        reader.begin_after(after).await?;
    }
    loop {
        // Query the status first: records written in between then belong to a running run.
        let working = store.run(&run).await?.summary.status == RunStatus::Running;
        let follows = args.follow && working;
        let each = async |record: &Record, passed: usize| {
            for event in events::of(record).iter().skip(passed) {
                print(&context.output, event, &names)?;
            }
            Ok(())
        };
        let told = reader.read(context, follows, each).await?;
        if !follows {
            if !told && !args.follow && reader.damaged.is_empty() {
                context.output.note("Nothing to print, because no event follows that cursor.");
            }
            return Ok(Exit::Done);
        }
        tokio::time::sleep(FOLLOW_INTERVAL).await;
    }
}

fn cursor(text: &str) -> Result<Cursor, Error> {
    let wrong =
        |error: events::InvalidCursor| Error::usage(error.to_string(), "use the `cursor` of an event");
    text.parse().map_err(wrong)
}

/// The sort key of a record in its run: order of writing. Records of one commit share a time; records of
/// outer scopes come first.
type Place = (Timestamp, usize, Rank, u64);

/// The order of scopes of equal depth within a commit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// Opened by this commit, after this number of others.
    Opened(usize),
    /// Opened before.
    Known(ScopePath),
}

/// Reads records incrementally, in order of writing.
///
/// Scopes are read one after the other, while others may grow. A follower therefore prints only records not
/// newer than those of the previous poll: their commits are complete.
pub(super) struct Reader<'a> {
    store: &'a dyn Store,
    run: &'a RunId,
    /// The newest printed record of each scope.
    printed: HashMap<ScopePath, u64>,
    /// Damaged checkpoints already reported.
    damaged: BTreeSet<(ScopePath, u64)>,
    /// The place of the cursor, and how many events of its record to skip.
    begin: Option<(Place, u32)>,
    /// The time of the newest record seen in a poll.
    seen: Timestamp,
    /// The opening time and ordinal of each scope.
    opened: HashMap<ScopePath, (Timestamp, usize)>,
}

/// An unprinted record; beyond the memory limit only its place.
struct FoundEvents {
    place: Place,
    scope: ScopePath,
    record: Option<Box<Record>>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(store: &'a dyn Store, run: &'a RunId) -> Self {
        let (printed, damaged) = (HashMap::new(), BTreeSet::new());
        Self { store, run, printed, damaged, begin: None, seen: Timestamp::MIN, opened: HashMap::new() }
    }

    fn place_of(&self, record: &Record) -> Place {
        let header = record.header();
        let opened = self.opened.get(&header.scope).filter(|(at, _)| *at == header.created_at);
        let rank = match opened {
            Some((_, nth)) => Rank::Opened(*nth),
            None => Rank::Known(header.scope.clone()),
        };
        (header.created_at, header.scope.depth(), rank, header.seq)
    }

    /// Skips events up to a cursor. If the cursor's record is damaged now, the time comes from the next
    /// record of the scope.
    async fn begin_after(&mut self, cursor: Cursor) -> Result<(), Error> {
        let Cursor { scope, seq, index } = cursor;
        let scopes = self.scopes().await?;
        let scan = Scan { scope: Some(scope.clone()), seq_min: Some(seq), limit: 1, ..Scan::of(self.run) };
        let found = match scopes.contains(&scope) {
            true => self.store.scan(&scan).await?.records.pop(),
            false => None,
        };
        let Some(found) = found else {
            return Err(Error::not_found(
                format!("event `{scope}@{seq}.{index}` in run {}", self.run),
                "use the `cursor` of an event of this run",
            ));
        };
        let place = self.place_of(&found);
        let passed = if place.3 == seq { index.saturating_add(1) } else { 0 };
        self.begin = Some((place, passed));
        Ok(())
    }

    /// Passes new records to `each`, with the number of events to skip; returns whether there were any events.
    /// `follows`: the newest records may not be complete yet.
    pub(super) async fn read(
        &mut self,
        context: &Context,
        follows: bool,
        mut each: impl AsyncFnMut(&Record, usize) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        let horizon = if follows { self.seen } else { Timestamp::MAX };
        let mut found = self.find_new(context).await?;
        found.retain(|found| found.place.0 <= horizon);
        found.sort_by(|one, other| one.place.cmp(&other.place));
        let mut any = false;
        for FoundEvents { place, scope, record } in found {
            let passed = match &self.begin {
                Some((begin, _)) if place < *begin => u32::MAX,
                Some((begin, passed)) if place == *begin => *passed,
                _ => 0,
            };
            let seq = place.3;
            let record = match record {
                Some(record) => Some(record),
                None if passed == u32::MAX => None,
                None => self.record_at(&scope, seq).await?.map(Box::new),
            };
            if let Some(record) = record.filter(|_| passed < u32::MAX) {
                any |= events::of(&record).len() > passed as usize;
                each(&record, passed as usize).await?;
            }
            self.printed.insert(scope, seq);
        }
        Ok(any)
    }

    /// Returns the unprinted records with their places; beyond the memory limit only the places.
    async fn find_new(&mut self, context: &Context) -> Result<Vec<FoundEvents>, Error> {
        let mut new = Vec::new();
        for scope in self.scopes().await? {
            let seq_min = self.printed.get(&scope).map(|seq| seq + 1);
            let mut scan = Scan { scope: Some(scope), seq_min, ..Scan::of(self.run) };
            loop {
                let page = self.store.scan(&scan).await?;
                // A record damaged in one copy and sound in another is printed.
                let is_told =
                    |damage: &&Damage| page.records.iter().any(|record| record.header().seq == damage.seq);
                let gaps = page.damaged.iter().filter(|damage| !is_told(damage));
                gaps.for_each(|damage| self.report_gap(context, damage));
                for record in page.records {
                    let place = self.place_of(&record);
                    self.seen = self.seen.max(place.0);
                    let is_kept = new.len() < KEPT_MAX;
                    let scope = record.header().scope.clone();
                    new.push(FoundEvents { place, scope, record: is_kept.then(|| Box::new(record)) });
                }
                match page.next {
                    Some(cursor) => scan.cursor = Some(cursor),
                    None => break,
                }
            }
        }
        Ok(new)
    }

    async fn record_at(&self, scope: &ScopePath, seq: u64) -> Result<Option<Record>, Error> {
        let (seq_min, seq_max) = (Some(seq), Some(seq));
        let scan = Scan { scope: Some(scope.clone()), seq_min, seq_max, ..Scan::of(self.run) };
        Ok(self.store.scan(&scan).await?.records.pop())
    }

    /// Warns once of a checkpoint without printable events.
    fn report_gap(&mut self, context: &Context, damage: &Damage) {
        let at = crate::run::reference::damaged_reference(self.run, damage);
        let what = if damage.flaw == Flaw::Missing { "missing" } else { "damaged" };
        let text = format!(
            "checkpoint {at} is {what}, its events are omitted; `waypost verify {}` shows details",
            self.run
        );
        if self.damaged.insert((damage.scope.clone(), damage.seq)) {
            context.output.warn(&context.with_store(&text));
        }
    }

    /// Returns the scopes in order of opening.
    async fn scopes(&mut self) -> Result<Vec<ScopePath>, Error> {
        let mut names = Vec::new();
        let mut scan = Scan { seq_max: Some(1), ..Scan::of(self.run) };
        loop {
            let page = self.store.scan(&scan).await?;
            for header in page.records.iter().map(Record::header) {
                self.opened.entry(header.scope.clone()).or_insert((header.created_at, names.len()));
                names.push(header.scope.clone());
            }
            names.extend(page.damaged.iter().map(|damage| damage.scope.clone()));
            match page.next {
                Some(cursor) => scan.cursor = Some(cursor),
                None => break,
            }
        }
        // A main scope with a damaged or quarantined first record still exists.
        let main = ScopePath::main();
        if !names.contains(&main) && self.store.newest(self.run, &main).await.is_ok() {
            names.insert(0, main);
        }
        Ok(names)
    }
}

fn print(output: &Output, event: &Event, names: &StepNames) -> Result<(), Error> {
    if output.json {
        output.line(event)?;
    } else {
        output.sentences(&EventLines { of_many: false, digests: output.verbose, names }.line(event))?;
    }
    Ok(())
}
