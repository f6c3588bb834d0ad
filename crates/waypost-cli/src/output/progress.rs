//! Progress of a run: a live region on a terminal, a line per event elsewhere, JSON on request.

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

use crate::format::time;

/// Interval of silence before a heartbeat line; log viewers give up on silent jobs later.
const HEARTBEAT: Duration = Duration::from_secs(60);
/// Refresh interval of the live region: smooth for an eye, and cheap.
const TICK: Duration = Duration::from_millis(120);
/// Most running steps with their own line in the live region, which must fit a small terminal.
const LINES_MAX: usize = 8;
/// Frames of the spinner before a running step.
const SPINNER: [char; 4] = ['|', '/', '-', '\\'];

/// Shows the progress of a run.
#[derive(Debug)]
pub(crate) struct Progress {
    output: Output,
    live: Option<Live>,
    /// Lines of several runs follow each other.
    of_many: bool,
    /// The line before the first event: a run that is refused has no event.
    heading: Mutex<Option<String>>,
    seen: Mutex<StepProgress>,
    /// The store with the logs of steps.
    store: OnceLock<Weak<dyn store::Store>>,
}

/// The events so far.
#[derive(Debug)]
struct StepProgress {
    /// Names of steps in the file, by id.
    names: BTreeMap<String, String>,
    /// Running steps, by name with branch (unless main).
    running: BTreeMap<String, Instant>,
    /// Items, by name of their step.
    items: BTreeMap<String, Items>,
    /// Steps whose items are joined: late ends of items are ignored.
    joined: BTreeSet<String>,
    progress: store::Progress,
    checkpoint: Option<(String, Instant)>,
    last_line: Instant,
    stopping: Option<StopLevel>,
    /// Why the JSON lines stopped, after a failed write.
    unheard: Option<io::Error>,
}

/// The progress of a step's items.
#[derive(Debug)]
struct Items {
    /// The start of the step, within this session.
    since: Instant,
    /// The number of items; unknown if an earlier session opened them.
    total: Option<u64>,
    ended: u64,
    failed: u64,
}

/// The live region: a line for each running step, and one for the run.
#[derive(Debug)]
struct Live {
    region: Mutex<Region>,
    began: Instant,
}

impl Progress {
    /// Selects the display mode.
    pub(crate) fn new(output: &Output, of_many: bool) -> Self {
        let live = (output.live && !output.json && !output.quiet).then(Live::new);
        let seen = Mutex::new(StepProgress::from(Instant::now()));
        let (heading, store) = (Mutex::default(), OnceLock::new());
        Self { output: output.clone(), live, of_many, heading, seen, store }
    }

    /// Sets the line to print before the first event.
    pub(crate) fn head(&self, text: String) {
        *self.heading.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
    }

    /// Sets the names of steps, by id.
    pub(crate) fn name_steps(&self, names: BTreeMap<String, String>) {
        self.seen().names = names;
    }

    /// Sets the store for the logs of steps.
    ///
    /// The reference is weak: a strong reference would keep the store open after the last work.
    pub(crate) fn read_logs_of(&self, store: &Arc<dyn store::Store>) {
        // All runs of a session are in one store.
        let _ = self.store.set(Arc::downgrade(store));
    }

    /// Prints heartbeats, as long as polled.
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
                self.output.note(&format!("{}  {text}", time::utc(time::now())));
            }
        }
    }

    /// Reports the requested stop, and the effect of the next signal.
    pub(crate) fn stopping(&self, level: StopLevel, by: &str) {
        let mut seen = self.seen();
        seen.stopping = Some(level);
        let text = match level {
            StopLevel::Graceful => format!("{by}: ending the running steps; Ctrl-C kills them"),
            StopLevel::Kill => format!("{by}: killing the running steps; Ctrl-C exits without waiting"),
        };
        match &self.live {
            Some(live) => live.draw("", &seen),
            None if !self.output.json => self.output.note(&text),
            None => {}
        }
    }

    /// Removes the live region.
    pub(crate) fn close(&self) {
        if let Some(live) = &self.live {
            live.region().draw("", &[]);
        }
    }

    /// Returns why the answer was not fully written, except for a gone reader.
    pub(crate) fn unheard(&self) -> Option<io::Error> {
        self.seen().unheard.take().filter(|error| error.kind() != io::ErrorKind::BrokenPipe)
    }

    fn seen(&self) -> MutexGuard<'_, StepProgress> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn show(&self, seen: &mut StepProgress, event: &Event, record: &Record) {
        if self.output.json {
            // A gone reader does not end the run.
            seen.unheard = self.output.line(event).err();
            return;
        }
        let noisy = matches!(event.what, EventKind::CheckpointWritten { .. });
        if let Some(live) = &self.live {
            if let Some(text) = live.told(&self.output, seen, event) {
                live.draw(&text, seen);
            }
        } else if !noisy || self.output.verbose {
            let line = crate::output::event_line::line(event, self.of_many);
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
    /// Formats the printed text of an ended step as a group.
    fn group(&self, seen: &StepProgress, event: &Event, record: &Record) -> Option<String> {
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
        if let Some(heading) = self.heading.lock().unwrap_or_else(PoisonError::into_inner).take() {
            match &self.live {
                Some(live) => live.draw(&heading, &seen),
                None => self.output.note(&heading),
            }
        }
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

impl StepProgress {
    /// Creates an empty view that starts at `now`.
    fn from(now: Instant) -> Self {
        Self {
            names: BTreeMap::new(),
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

    /// Returns a step with its name, if it has one.
    fn titled(&self, step: &str) -> String {
        let id = step.rsplit('/').next().unwrap_or(step);
        self.names.get(id).map_or_else(|| step.to_owned(), |name| format!("{step} ({})", super::shown(name)))
    }

    /// Returns a heartbeat line after enough silence by `now`, and restarts the interval.
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

    /// The join continues the step, begun before the items.
    fn join(&mut self, step: String) {
        let since = self.end_items(&step).unwrap_or_else(Instant::now);
        self.running.insert(step, since);
    }

    /// Stops counting the items of a step, if it has items; returns the start of the step.
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

    /// Returns the run's status in one line, shortened to fit, and always with the effect of Ctrl-C.
    fn status(&self, columns: usize) -> String {
        let store::Progress { done, total } = self.progress;
        let checkpoint = match &self.checkpoint {
            Some((at, since)) => format!("checkpoint {at} {}s ago", since.elapsed().as_secs()),
            None => "no checkpoint yet".to_owned(),
        };
        let next = match self.stopping {
            None => "Ctrl-C stops, resumable",
            Some(StopLevel::Graceful) => "stopping; Ctrl-C kills the steps",
            Some(StopLevel::Kill) => "killing; Ctrl-C exits at once",
        };
        let longer =
            [format!("{done}/{total} steps, {checkpoint}; {next}"), format!("{done}/{total} steps; {next}")];
        longer.into_iter().find(|text| text.chars().count() <= columns).unwrap_or_else(|| next.to_owned())
    }
}

/// Returns the display name of a step, with its branch. An item is named after its opener.
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
    /// Creates an empty count.
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

    /// Formats the count as a bar, if the total is known.
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

    /// Draws the running steps, and the ended ones above.
    fn draw(&self, above: &str, seen: &StepProgress) {
        let turn = self.began.elapsed().as_millis() / TICK.as_millis();
        let spinner = SPINNER[usize::try_from(turn % SPINNER.len() as u128).unwrap_or_default()];
        let line = |(step, since): (&String, &Instant)| {
            let lasted = match since.elapsed() {
                // Tenths would only flicker.
                short if short.as_secs() < 60 => format!("{}s", short.as_secs()),
                long => time::lasted(long),
            };
            format!("{spinner:>7} {} {lasted}", seen.titled(step))
        };
        let bars = seen
            .items
            .iter()
            .take(LINES_MAX)
            .map(|(step, items)| format!("        {} {}", seen.titled(step), items.bar()));
        let mut lines: Vec<String> = bars.collect();
        lines.extend(seen.running.iter().take(LINES_MAX - lines.len()).map(line));
        lines.push(seen.status(Region::columns()));
        self.region().draw(above, &lines);
    }

    /// Returns a line about an ended step, if the event is one.
    #[expect(clippy::unused_self, reason = "only the live region shows the number of items")]
    fn told(&self, output: &Output, seen: &StepProgress, event: &Event) -> Option<String> {
        let paint = output.paint_err;
        let step = name_of(event).unwrap_or_default();
        let took = seen.running.get(&step);
        let step = seen.titled(&step);
        let took = took.map(|since| format!(" ({})", time::lasted(since.elapsed()))).unwrap_or_default();
        let why = |error: &[String]| super::shown(error.first().map_or("", String::as_str)).into_owned();
        let text = match &event.what {
            EventKind::StepCompleted(_) => format!("{} {step}{took}", paint.green("   done")),
            EventKind::StepFailed(failed) if failed.tolerated => {
                format!("{} {step}{took}: {}; tolerated", paint.yellow(" failed"), why(&failed.error))
            }
            EventKind::StepFailed(failed) => {
                format!("{} {step}{took}: {}", paint.red(" failed"), why(&failed.error))
            }
            EventKind::StepRetried(failed) => {
                format!("{} {step}{took}: {}; will retry", paint.yellow("  retry"), why(&failed.error))
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

    use super::{HEARTBEAT, StepProgress};

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

    // What happened: `each 1 more items` was shown after the join of a step whose last item had failed, and the
    // step seemed to have taken 1ms.
    // Why: the end of an item can be reported after the start of the join, and restarted the step's time.
    // What stops it now: ends of items after the join are not counted, and the join keeps the step's start.
    #[test]
    fn items_that_are_joined_are_not_shown_any_more() {
        let mut seen = StepProgress::from(Instant::now());
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
        // A session that did not see the number of items.
        let mut seen = StepProgress::from(Instant::now());
        seen.take(&event("each:b", "each", dead()));
        assert_eq!(seen.items["each"].told(), "1 more item, 1 failed");
    }

    #[test]
    fn each_minute_of_silence_has_a_line() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut seen = StepProgress::from(begin);
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
        let mut seen = StepProgress::from(Instant::now());
        seen.progress = waypost::store::Progress { done: 1, total: 3 };

        assert_eq!(seen.status(77), "1/3 steps, no checkpoint yet; Ctrl-C stops, resumable");
        assert_eq!(seen.status(37), "1/3 steps; Ctrl-C stops, resumable");
        seen.stopping = Some(waypost::engine::StopLevel::Graceful);
        assert_eq!(seen.status(37), "stopping; Ctrl-C kills the steps");
    }

    #[test]
    fn a_line_begins_the_silence_anew() {
        let begin = Instant::now();
        let mut seen = StepProgress::from(begin);

        seen.last_line = begin + Duration::from_secs(59);

        assert_eq!(seen.heartbeat(begin + Duration::from_secs(118)), None);
        let line = seen.heartbeat(begin + Duration::from_secs(119));
        assert_eq!(line.as_deref(), Some("still working: waiting for the next attempt"));
    }
}
