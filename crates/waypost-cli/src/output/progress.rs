//! What is seen of a run while it works: a live region on a terminal, a line an event elsewhere, JSON where asked.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use waypost::engine::{Observer, StopLevel};
use waypost::events::{self, Event, EventKind};
use waypost::record::{Position, Record};
use waypost::store;
use waypost::{BranchPath, StepId};

use super::region::Region;
use super::{Output, actions};
use crate::commands::event_line;
use crate::time;

/// After so long without an event, a line says that the run is alive: log viewers give up on silent jobs later.
const HEARTBEAT: Duration = Duration::from_secs(60);
/// How often the live region moves: smooth for an eye, nothing for a processor.
const TICK: Duration = Duration::from_millis(120);
/// Most steps under way that have a line of their own in the live region; it must fit a small terminal.
const LINES_MAX: usize = 8;
/// What moves before a step under way.
const SPINNER: [char; 4] = ['|', '/', '-', '\\'];

/// Shows a run under way.
#[derive(Debug)]
pub(crate) struct Progress {
    output: Output,
    live: Option<Live>,
    /// The lines of several runs follow each other.
    of_many: bool,
    seen: Mutex<Seen>,
    /// Where the logs of steps are.
    store: OnceLock<Weak<dyn store::Store>>,
}

/// What was seen so far.
#[derive(Debug)]
struct Seen {
    /// By what a step is called, with its branch where that is not the main one.
    running: BTreeMap<String, Instant>,
    /// By what a step is called: the items that it works on.
    items: BTreeMap<String, Items>,
    /// Those whose items are done with: what ends of them may be told after that.
    joined: BTreeSet<String>,
    progress: store::Progress,
    checkpoint: Option<(String, Instant)>,
    last_line: Instant,
    stopping: Option<StopLevel>,
    /// Why the JSON lines are not written any more, where they could not be.
    unheard: Option<io::Error>,
}

/// How far the items of a step are.
#[derive(Debug)]
struct Items {
    /// When the step began that works on them, as far as that was in this session.
    since: Instant,
    /// How many there are; not known of those that a session before this one opened.
    total: Option<u64>,
    ended: u64,
    failed: u64,
}

/// The live region: a line for each step under way, and one for the run.
#[derive(Debug)]
struct Live {
    region: Mutex<Region>,
    began: Instant,
}

impl Progress {
    /// Chooses how to show it.
    pub(crate) fn new(output: &Output, of_many: bool) -> Self {
        let live = (output.live && !output.json && !output.quiet).then(Live::new);
        let seen = Mutex::new(Seen::from(Instant::now()));
        Self { output: output.clone(), live, of_many, seen, store: OnceLock::new() }
    }

    /// Has it read the logs of steps in this store.
    ///
    /// Who holds a store keeps it open: it ends with those who work on its runs, and takes its log in then.
    pub(crate) fn read_logs_of(&self, store: &Arc<dyn store::Store>) {
        // All runs of a session are in one store.
        let _ = self.store.set(Arc::downgrade(store));
    }

    /// Says now and then that the run is alive, for as long as it is polled.
    pub(crate) async fn keep_fresh(&self) {
        let pause = if self.live.is_some() { TICK } else { Duration::from_secs(1) };
        loop {
            tokio::time::sleep(pause).await;
            let mut seen = self.seen();
            if let Some(live) = &self.live {
                live.draw("", &seen);
            } else if !self.output.json
                && let Some(text) = seen.heartbeat(Instant::now())
            {
                drop(seen);
                self.output.note(&format!("{}  {text}", time::utc(crate::commands::now())));
            }
        }
    }

    /// Says that the run is being stopped, and what the next signal does.
    pub(crate) fn stopping(&self, level: StopLevel, by: &str) {
        let mut seen = self.seen();
        seen.stopping = Some(level);
        let text = match level {
            StopLevel::Graceful => format!("{by}: ending the steps under way; Ctrl-C kills them"),
            StopLevel::Kill => format!("{by}: killing the steps under way; Ctrl-C leaves without waiting"),
        };
        match &self.live {
            Some(live) => live.draw("", &seen),
            None if !self.output.json => self.output.note(&text),
            None => {}
        }
    }

    /// Takes the live region away.
    pub(crate) fn close(&self) {
        if let Some(live) = &self.live {
            live.region().draw("", &[]);
        }
    }

    /// Returns why not all of the answer was written, where it was not, and a reader that has seen enough is not why.
    pub(crate) fn unheard(&self) -> Option<io::Error> {
        self.seen().unheard.take().filter(|error| error.kind() != io::ErrorKind::BrokenPipe)
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn show(&self, seen: &mut Seen, event: &Event, record: &Record) {
        if self.output.json {
            // A run does not end because its reader went away.
            seen.unheard = self.output.line(event).err();
            return;
        }
        let noisy = matches!(event.what, EventKind::CheckpointWritten { .. });
        if let Some(live) = &self.live {
            if let Some(text) = live.told(&self.output, seen, event) {
                live.draw(&text, seen);
            }
        } else if !noisy || self.output.verbose {
            let line = event_line(event, self.of_many);
            let is_end = matches!(
                event.what,
                EventKind::StepCompleted(_) | EventKind::StepFailed(_) | EventKind::StepRetried(_)
            );
            let group = (self.output.actions && is_end).then(|| self.group(seen, event, record)).flatten();
            self.output.note(group.as_ref().unwrap_or(&line));
            seen.last_line = Instant::now();
        }
    }
}

impl Progress {
    /// Makes a group of what a step printed that has ended.
    fn group(&self, seen: &Seen, event: &Event, record: &Record) -> Option<String> {
        let header = record.header();
        let step = name_of(event)?;
        let took = time::lasted(seen.running.get(&step).map(Instant::elapsed).unwrap_or_default());
        let step = if self.of_many { format!("{}: {step}", header.run) } else { step };
        let folder = self.store.get().and_then(Weak::upgrade).and_then(|store| store.folder(&header.run));
        actions::group((&step, &took), header, folder.as_deref())
    }
}

impl Observer for Progress {
    fn committed(&self, records: &[Record], _: &Position, progress: store::Progress) {
        let mut seen = self.seen();
        seen.progress = progress;
        for record in records {
            for event in events::of(record) {
                if seen.unheard.is_none() {
                    self.show(&mut seen, &event, record);
                }
                seen.take(&event);
            }
            for start in record.header().started.iter().filter(|start| start.joins) {
                seen.join(called(&record.header().branch, &start.step));
            }
        }
        if let Some(last) = records.last() {
            seen.checkpoint = Some((format!("@{}", last.header().seq), Instant::now()));
        }
        if let Some(live) = &self.live {
            live.draw("", &seen);
        }
    }

    fn warned(&self, text: &str) {
        match &self.live {
            Some(live) => {
                let seen = self.seen();
                live.region().draw("", &[]);
                self.output.warn(text);
                live.draw("", &seen);
            }
            None => self.output.warn(text),
        }
    }
}

impl Seen {
    /// Has seen nothing since `now`.
    fn from(now: Instant) -> Self {
        Self {
            running: BTreeMap::new(),
            items: BTreeMap::new(),
            joined: BTreeSet::new(),
            progress: store::Progress::default(),
            checkpoint: None,
            last_line: now,
            stopping: None,
            unheard: None,
        }
    }

    /// Says that the run is alive, if it was silent for so long by `now`; then the next silence begins.
    fn heartbeat(&mut self, now: Instant) -> Option<String> {
        if now.saturating_duration_since(self.last_line) < HEARTBEAT {
            return None;
        }
        self.last_line = now;
        Some(format!("still working: {}", self.under_way(now)))
    }

    fn take(&mut self, event: &Event) {
        let Some(step) = name_of(event) else { return };
        match &event.what {
            EventKind::Progress { key, value } if key == "items" => {
                let since = self.running.remove(&step).unwrap_or_else(Instant::now);
                self.joined.remove(&step);
                self.items.insert(step, Items { total: value.as_u64(), ..Items::since(since) });
            }
            EventKind::ItemStarted { .. } => drop(self.joined.remove(&step)),
            EventKind::ItemCompleted { .. } | EventKind::ItemDead { .. } if self.joined.contains(&step) => {}
            EventKind::ItemCompleted { .. } | EventKind::ItemDead { .. } => {
                let items = self.items.entry(step).or_insert_with(|| Items::since(Instant::now()));
                items.ended += 1;
                items.failed += u64::from(matches!(event.what, EventKind::ItemDead { .. }));
            }
            EventKind::StepStarted => drop(self.running.insert(step, Instant::now())),
            EventKind::StepFailed(_) => {
                self.end_items(&step);
                self.running.remove(&step);
            }
            EventKind::StepCompleted(_)
            | EventKind::StepRetried(_)
            | EventKind::StepSkipped { .. }
            | EventKind::Interrupted { .. } => drop(self.running.remove(&step)),
            _ => {}
        }
    }

    /// A step goes on with what began before its items.
    fn join(&mut self, step: String) {
        let since = self.end_items(&step).unwrap_or_else(Instant::now);
        self.running.insert(step, since);
    }

    /// Counts the items of a step no more, if it works on some; returns when it began.
    fn end_items(&mut self, step: &str) -> Option<Instant> {
        let items = self.items.remove(step)?;
        self.joined.insert(step.to_owned());
        Some(items.since)
    }

    fn under_way(&self, now: Instant) -> String {
        let lasted = |since: &Instant| time::lasted(now.saturating_duration_since(*since));
        let step = |(step, since): (&String, &Instant)| format!("{step} for {}", lasted(since));
        let items = self.items.iter().map(|(step, items)| format!("{step}: {}", items.told()));
        let steps: Vec<String> = items.chain(self.running.iter().map(step)).collect();
        let steps =
            if steps.is_empty() { "waiting for the next attempt".to_owned() } else { steps.join(", ") };
        let checkpoint = self.checkpoint.as_ref();
        let checkpoint = checkpoint
            .map(|(at, since)| format!("; checkpoint {at} {} ago", lasted(since)))
            .unwrap_or_default();
        format!("{steps}{checkpoint}")
    }

    /// Says in one line how the run is, as long as there is room; what Ctrl-C does, in any case.
    fn status(&self, columns: usize) -> String {
        let store::Progress { done, total } = self.progress;
        let checkpoint = match &self.checkpoint {
            Some((at, since)) => format!("checkpoint {at} {}s ago", since.elapsed().as_secs()),
            None => "no checkpoint yet".to_owned(),
        };
        let next = match self.stopping {
            None => "Ctrl-C stops and keeps it",
            Some(StopLevel::Graceful) => "stopping; Ctrl-C kills the steps",
            Some(StopLevel::Kill) => "killing; Ctrl-C leaves at once",
        };
        let longer =
            [format!("{done}/{total} steps, {checkpoint}; {next}"), format!("{done}/{total} steps; {next}")];
        longer.into_iter().find(|text| text.chars().count() <= columns).unwrap_or_else(|| next.to_owned())
    }
}

/// What a step is called on the screen: its branch says which of many it is. An item belongs to the step that opened it.
fn name_of(event: &Event) -> Option<String> {
    let step = event.step.as_ref()?;
    let branch = match event.what {
        EventKind::ItemStarted { .. } | EventKind::ItemCompleted { .. } | EventKind::ItemDead { .. } => {
            event.branch.parent()?
        }
        _ => event.branch.clone(),
    };
    Some(called(&branch, step))
}

fn called(branch: &BranchPath, step: &StepId) -> String {
    if branch.is_main() { step.to_string() } else { format!("{branch}/{step}") }
}

impl Items {
    /// Of none has been seen anything.
    fn since(since: Instant) -> Self {
        Self { since, total: None, ended: 0, failed: 0 }
    }

    fn told(&self) -> String {
        let failed = if self.failed == 0 { String::new() } else { format!(", {} failed", self.failed) };
        let items = if self.total.unwrap_or(self.ended) == 1 { "item" } else { "items" };
        match self.total {
            Some(total) => format!("{} of {total} {items}{failed}", self.ended),
            None => format!("{} more {items}{failed}", self.ended),
        }
    }

    /// As a bar, where it is known of what.
    fn bar(&self) -> String {
        const WIDTH: u64 = 20;
        let Some(total) = self.total.filter(|total| *total > 0) else { return self.told() };
        let full = usize::try_from(self.ended.min(total) * WIDTH / total).unwrap_or_default();
        let rest = usize::try_from(WIDTH).unwrap_or_default() - full;
        format!("[{}{}] {}", "#".repeat(full), ".".repeat(rest), self.told())
    }
}

impl Live {
    fn new() -> Self {
        Self { region: Mutex::default(), began: Instant::now() }
    }

    fn region(&self) -> MutexGuard<'_, Region> {
        self.region.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Draws what is under way now, and above it what has ended.
    fn draw(&self, above: &str, seen: &Seen) {
        let turn = self.began.elapsed().as_millis() / TICK.as_millis();
        let spinner = SPINNER[usize::try_from(turn % SPINNER.len() as u128).unwrap_or_default()];
        let line = |(step, since): (&String, &Instant)| {
            let lasted = match since.elapsed() {
                // Tenths would only flicker.
                short if short.as_secs() < 60 => format!("{}s", short.as_secs()),
                long => time::lasted(long),
            };
            format!("{spinner:>7} {step} {lasted}")
        };
        let bars =
            seen.items.iter().take(LINES_MAX).map(|(step, items)| format!("        {step} {}", items.bar()));
        let mut lines: Vec<String> = bars.collect();
        lines.extend(seen.running.iter().take(LINES_MAX - lines.len()).map(line));
        lines.push(seen.status(Region::columns()));
        self.region().draw(above, &lines);
    }

    /// Says what has ended, if something has.
    #[expect(clippy::unused_self, reason = "only a live region is told so")]
    fn told(&self, output: &Output, seen: &Seen, event: &Event) -> Option<String> {
        let paint = output.paint_err;
        let step = name_of(event).unwrap_or_default();
        let took = seen.running.get(&step);
        let took = took.map(|since| format!(" ({})", time::lasted(since.elapsed()))).unwrap_or_default();
        let why = |error: &[String]| super::shown(error.first().map_or("", String::as_str)).into_owned();
        let text = match &event.what {
            EventKind::StepCompleted(_) => format!("{} {step}{took}", paint.green("   done")),
            EventKind::StepFailed(failed) if failed.tolerated => {
                format!(
                    "{} {step}{took}: {}; the workflow goes on",
                    paint.yellow(" failed"),
                    why(&failed.error)
                )
            }
            EventKind::StepFailed(failed) => {
                format!("{} {step}{took}: {}", paint.red(" failed"), why(&failed.error))
            }
            EventKind::StepRetried(failed) => {
                format!("{} {step}{took}: {}; it is tried again", paint.yellow("  retry"), why(&failed.error))
            }
            EventKind::StepSkipped { .. } => format!("{} {step}", paint.dim("   skip")),
            EventKind::Interrupted { by, .. } if event.step.is_some() => {
                format!("{} {step}{took}: {}", paint.yellow("stopped"), by.as_deref().unwrap_or("it waits"))
            }
            EventKind::ItemDead { key, .. } => {
                format!("{} {step}: item {}", paint.red("   dead"), super::shown(key))
            }
            EventKind::Custom { name, data } if name == "warning" => {
                let text = data.as_str().unwrap_or_default();
                format!("{} {step}: {}", paint.yellow("warning"), super::shown(text))
            }
            _ => return None,
        };
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use jiff::Timestamp;
    use waypost::events::{Cursor, EVENT_VERSION, Event, EventKind};
    use waypost::record::End;
    use waypost::{BranchPath, RunId, StepId};

    use super::{HEARTBEAT, Seen};

    fn event(branch: &str, step: &str, what: EventKind) -> Event {
        let branch = BranchPath::new(branch).unwrap();
        Event {
            v: EVENT_VERSION,
            cursor: Cursor { branch: branch.clone(), seq: 1, index: 0 },
            ts: Timestamp::UNIX_EPOCH,
            run: RunId::new("r").unwrap(),
            branch,
            seq: 1,
            parent: None,
            step: Some(StepId::new(step).unwrap()),
            attempt: None,
            what,
            iteration: Vec::new(),
            epoch: 0,
        }
    }

    // What happened: `each 1 more items` stood under all that came after a step whose last item had failed, and the step
    // was said to have taken 1ms.
    // Why: the end of an item may be told after the start of the join, and that began the time anew.
    // What stops it now: what is told of items after that is not counted, and the join goes on with the time before.
    #[test]
    fn items_that_are_joined_are_not_shown_any_more() {
        let mut seen = Seen::from(Instant::now());
        let dead = || EventKind::ItemDead { key: "b".to_owned(), end: End::Failed };
        seen.take(&event("main", "each", EventKind::StepStarted));
        let began = seen.running["each"];
        let found = EventKind::Progress { key: "items".to_owned(), value: 2.into() };
        seen.take(&event("main", "each", found));
        seen.take(&event("each:a", "each", dead()));
        assert_eq!(seen.items["each"].told(), "1 of 2 items, 1 failed");

        seen.join("each".to_owned());
        seen.take(&event("each:b", "each", dead()));

        assert!(seen.items.is_empty(), "{:?}", seen.items);
        assert_eq!(seen.running["each"], began);
        // In a session that did not see how many there are.
        let mut seen = Seen::from(Instant::now());
        seen.take(&event("each:b", "each", dead()));
        assert_eq!(seen.items["each"].told(), "1 more item, 1 failed");
    }

    #[test]
    fn each_minute_of_silence_has_a_line() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut seen = Seen::from(begin);
        seen.running.insert("build".to_owned(), at(10));
        seen.checkpoint = Some(("@2".to_owned(), at(10)));

        let lines: Vec<(u64, String)> =
            (1..=185).filter_map(|second| seen.heartbeat(at(second)).map(|line| (second, line))).collect();

        assert_eq!(HEARTBEAT, Duration::from_secs(60));
        let line = |minutes: &str| format!("still working: build for {minutes}; checkpoint @2 {minutes} ago");
        assert_eq!(lines, [(60, line("50.0s")), (120, line("1m50s")), (180, line("2m50s"))]);
    }

    #[test]
    fn what_ctrl_c_does_fits_a_narrow_terminal() {
        let mut seen = Seen::from(Instant::now());
        seen.progress = waypost::store::Progress { done: 1, total: 3 };

        assert_eq!(seen.status(77), "1/3 steps, no checkpoint yet; Ctrl-C stops and keeps it");
        assert_eq!(seen.status(37), "1/3 steps; Ctrl-C stops and keeps it");
        seen.stopping = Some(waypost::engine::StopLevel::Graceful);
        assert_eq!(seen.status(37), "stopping; Ctrl-C kills the steps");
    }

    #[test]
    fn a_line_begins_the_silence_anew() {
        let begin = Instant::now();
        let mut seen = Seen::from(begin);

        seen.last_line = begin + Duration::from_secs(59);

        assert_eq!(seen.heartbeat(begin + Duration::from_secs(118)), None);
        let line = seen.heartbeat(begin + Duration::from_secs(119));
        assert_eq!(line.as_deref(), Some("still working: waiting for the next attempt"));
    }
}
