//! The steps of a run under way, as the events tell.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use waypost::ScopePath;
use waypost::engine::StopLevel;
use waypost::events::{Event, EventKind};
use waypost::record::{Try, Wait, WaitKind};
use waypost::store;

use super::region::fitted;
use super::shown;
use super::step_log::StepLog;
use crate::format::time;
use crate::view::step_names::StepNames;

/// Interval of silence before a heartbeat line; log viewers give up on silent jobs later.
const HEARTBEAT: Duration = Duration::from_secs(60);
/// Columns of the bar of items.
const BAR_COLUMNS: u64 = 20;

/// The events so far.
#[derive(Debug)]
pub(super) struct StepProgress {
    pub(super) names: StepNames,
    /// Running steps, by name with scope (unless main).
    pub(super) running: BTreeMap<String, RunningStep>,
    /// Steps with a failed attempt, until the next attempt starts.
    retrying: BTreeMap<String, NextAttempt>,
    /// Steps with open waits, and the waits as text.
    waiting: BTreeMap<String, String>,
    /// Logs of services, which run on after the end of their steps.
    pub(super) services: BTreeMap<String, StepLog>,
    /// Items, by name of their step.
    items: BTreeMap<String, Items>,
    /// The start of the first child of each step without items.
    opened: BTreeMap<String, Instant>,
    /// Steps whose items are joined: late ends of items are ignored.
    joined: BTreeSet<String>,
    pub(super) progress: store::Progress,
    checkpoint: Option<(String, Instant)>,
    pub(super) last_line: Instant,
    pub(super) stopping: Option<StopLevel>,
    /// The number of starts so far.
    starts: u64,
}

/// A running step.
#[derive(Debug)]
pub(super) struct RunningStep {
    since: Instant,
    /// The place in the order of starts.
    nth: u64,
    pub(super) log: StepLog,
}

/// The next attempt of a step.
#[derive(Debug)]
struct NextAttempt {
    attempt: u32,
    /// `None` without a delay.
    at: Option<Timestamp>,
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
    /// The log of the step that opened the items.
    log: Option<StepLog>,
}

impl StepProgress {
    /// Creates an empty view that starts at `now`.
    pub(super) fn from(now: Instant) -> Self {
        Self {
            names: StepNames::default(),
            running: BTreeMap::new(),
            retrying: BTreeMap::new(),
            waiting: BTreeMap::new(),
            services: BTreeMap::new(),
            items: BTreeMap::new(),
            opened: BTreeMap::new(),
            joined: BTreeSet::new(),
            progress: store::Progress::default(),
            checkpoint: None,
            last_line: now,
            stopping: None,
            starts: 0,
        }
    }

    /// Returns a step with its name, if it has one.
    pub(super) fn titled(&self, step: &str) -> String {
        let (scope, id) = step.rsplit_once('/').unwrap_or(("main", step));
        let scope = ScopePath::new(scope).unwrap_or_else(|_| ScopePath::main());
        self.names.beside(step.to_owned(), &scope, id)
    }

    /// Returns a heartbeat line after enough silence by `now`, and restarts the interval.
    pub(super) fn heartbeat(&mut self, now: Instant) -> Option<String> {
        if now.saturating_duration_since(self.last_line) < HEARTBEAT {
            return None;
        }
        self.last_line = now;
        Some(format!("still working: {}", self.under_way(now)))
    }

    /// Returns the display name of a step, with its scope. An item is named after its opener.
    pub(super) fn name_of(&self, event: &Event) -> Option<String> {
        Some(self.names.called(&scope_of(event)?, event.step.as_ref()?.as_str()))
    }

    /// Takes an event in. `retry_at` is the time of the next attempt, for a failed attempt with a delay.
    pub(super) fn take(&mut self, event: &Event, retry_at: Option<Timestamp>) {
        let Some(step) = self.name_of(event) else { return };
        match &event.what {
            EventKind::Progress { key, value } if key == "items" => {
                let opener = self.running.remove(&step);
                let since = opener.as_ref().map_or_else(|| since(event.ts), |opener| opener.since);
                self.joined.remove(&step);
                let (total, log) = (value.as_u64(), opener.map(|opener| opener.log));
                self.items.insert(step, Items { total, log, ..Items::since(since) });
            }
            EventKind::ItemStarted { .. } => {
                self.joined.remove(&step);
                if !self.counts_items(event) {
                    self.opened.entry(step).or_insert_with(|| since(event.ts));
                }
            }
            EventKind::ItemCompleted { .. } | EventKind::ItemDead { .. }
                if self.joined.contains(&step) || !self.counts_items(event) => {}
            EventKind::ItemCompleted { .. } | EventKind::ItemDead { .. } => {
                let items = self.items.entry(step).or_insert_with(|| Items::since(since(event.ts)));
                items.ended += 1;
                items.failed += u64::from(matches!(event.what, EventKind::ItemDead { .. }));
            }
            EventKind::StepStarted => {
                self.end(&step);
                self.start(step, since(event.ts), log_of(event));
            }
            EventKind::StepRetried(_) => {
                self.running.remove(&step);
                let attempt = event.attempt.unwrap_or_default() + 1;
                self.retrying.insert(step, NextAttempt { attempt, at: retry_at });
            }
            EventKind::StepFailed(_) => {
                self.end_items(&step);
                self.end(&step);
            }
            EventKind::StepCompleted(_) | EventKind::StepSkipped { .. } | EventKind::Interrupted { .. } => {
                self.end(&step);
            }
            _ => {}
        }
    }

    /// Returns whether the child scope of an event is an item.
    pub(super) fn counts_items(&self, event: &Event) -> bool {
        let above = scope_of(event).zip(event.step.as_ref());
        above.is_none_or(|(scope, opener)| self.names.has_items(&scope, opener.as_str()))
    }

    /// The step runs on as a service after its end.
    pub(super) fn keep_service(&mut self, event: &Event) {
        let log = self.name_of(event).and_then(|step| Some((self.running.remove(&step)?.log, step)));
        self.services.extend(log.map(|(log, step)| (step, log)));
    }

    /// Takes a checkpoint in, written at `at`.
    pub(super) fn checkpoint(&mut self, seq: u64, at: Timestamp) {
        self.checkpoint = Some((format!("@{seq}"), since(at)));
    }

    /// The join continues the step, begun before its scopes. `log`: the log of the step, if unknown.
    pub(super) fn join(&mut self, step: String, log: StepLog) {
        let items = self.end_items(&step);
        let running = self.running.remove(&step);
        let since = running.as_ref().map(|running| running.since).or(items.as_ref().map(|items| items.since));
        let since = since.or(self.opened.remove(&step));
        // The printed part of the log is not printed again.
        let read = running.map(|running| running.log).or(items.and_then(|items| items.log));
        self.start(step, since.unwrap_or_else(Instant::now), Some(read.unwrap_or(log)));
    }

    fn start(&mut self, step: String, since: Instant, log: Option<StepLog>) {
        self.starts += 1;
        let nth = self.starts;
        self.running.extend(log.map(|log| (step, RunningStep { since, nth, log })));
    }

    fn end(&mut self, step: &str) {
        self.running.remove(step);
        self.retrying.remove(step);
        self.waiting.remove(step);
        self.opened.remove(step);
    }

    /// The step waits, until its next event.
    pub(super) fn wait(&mut self, step: String, waits: &[Wait]) {
        let text: Vec<String> = waits.iter().filter_map(wait_in_short).collect();
        if !text.is_empty() {
            self.waiting.insert(step, text.join(", "));
        }
    }

    /// Stops counting the items of a step, and returns the count.
    fn end_items(&mut self, step: &str) -> Option<Items> {
        self.joined.insert(step.to_owned());
        self.items.remove(step)
    }

    /// Returns the duration of a running step.
    pub(super) fn lasted(&self, step: &str) -> Option<Duration> {
        self.running.get(step).map(|step| step.since.elapsed())
    }

    fn under_way(&self, now: Instant) -> String {
        let lasted = |since: &Instant| time::lasted(now.saturating_duration_since(*since));
        let step =
            |(step, running): (&String, &RunningStep)| format!("{step} for {}", lasted(&running.since));
        let items = self.items.iter().map(|(step, items)| format!("{step}: {}", items.told()));
        let waits = self.waiting.iter().map(|(step, wait)| format!("{step} waits {wait}"));
        let steps: Vec<String> = items.chain(self.running.iter().map(step)).chain(waits).collect();
        let steps =
            if steps.is_empty() { "waiting for the next attempt".to_owned() } else { steps.join(", ") };
        let checkpoint = self.checkpoint.as_ref();
        let checkpoint = checkpoint
            .map(|(at, since)| format!("; checkpoint {at} {} ago", lasted(since)))
            .unwrap_or_default();
        format!("{steps}{checkpoint}")
    }

    /// Returns the run's status in one line, shortened to fit, and always with the effect of Ctrl-C.
    pub(super) fn status(&self, columns: usize, ctrl_c: &str) -> String {
        let store::Progress { done, total } = self.progress;
        let checkpoint = self.checkpoint.as_ref().map_or_else(String::new, |(at, since)| {
            format!(", checkpoint {at} {} ago", whole_seconds(since.elapsed()))
        });
        let next = match self.stopping {
            None => ctrl_c,
            Some(StopLevel::Graceful) => "stopping; Ctrl-C kills the steps",
            Some(StopLevel::Kill) => "killing; Ctrl-C exits at once",
        };
        if total == 0 {
            // Nothing was written yet.
            return next.to_owned();
        }
        let longer =
            [format!("{done}/{total} steps{checkpoint}; {next}"), format!("{done}/{total} steps; {next}")];
        longer.into_iter().find(|text| text.chars().count() <= columns).unwrap_or_else(|| next.to_owned())
    }

    /// Returns the lines about the work under way, at most `room` of at most `columns` columns: items, coming attempts, and
    /// running steps with the last line of their output, newest first.
    pub(super) fn lines(&self, spinner: char, room: usize, columns: usize) -> Vec<String> {
        let mut running: Vec<_> = self.running.iter().collect();
        running.sort_unstable_by_key(|(_, running)| Reverse(running.nth));
        let bars = self.items.iter().map(|(step, items)| vec![items.bar(&self.titled(step), columns)]);
        let steps = running.into_iter().map(|(step, running)| {
            let took = format!(" {}", whole_seconds(running.since.elapsed()));
            let last = running.log.last_line();
            let last = (!last.is_empty()).then(|| format!("        | {last}"));
            let first = fitted(&format!("{spinner:>7} "), &self.titled(step), &took, columns);
            std::iter::once(first).chain(last).collect()
        });
        let now = time::now();
        let retries =
            self.retrying.iter().map(|(step, next)| vec![next.line(&self.titled(step), now, columns)]);
        let waits = self
            .waiting
            .iter()
            .map(|(step, wait)| vec![fitted("  waits ", &self.titled(step), &format!(" {wait}"), columns)]);
        let blocks: Vec<Vec<String>> = bars.chain(retries).chain(waits).chain(steps).collect();
        let (mut lines, count) = (Vec::new(), blocks.len());
        for (index, block) in blocks.into_iter().enumerate() {
            // The last block needs no room for a line about more.
            let spare = usize::from(index + 1 < count);
            if lines.len() + block.len() + spare > room {
                lines.push(format!("        +{} more", count - index));
                break;
            }
            lines.extend(block);
        }
        lines
    }

    /// Returns the names of the running steps, newest first.
    pub(super) fn newest(&self, count: usize) -> Vec<String> {
        let mut running: Vec<_> = self.running.iter().collect();
        running.sort_unstable_by_key(|(_, running)| Reverse(running.nth));
        running.into_iter().take(count).map(|(step, _)| step.clone()).collect()
    }
}

/// Returns a wait in a few words; the wait for children is the work of the children.
fn wait_in_short(wait: &Wait) -> Option<String> {
    match &wait.on {
        WaitKind::Answer => Some("for an answer".to_owned()),
        WaitKind::Signal(name) => Some(format!("for signal {}", shown(name))),
        WaitKind::Until(due) => Some(format!("until {}", time::utc(*due))),
        WaitKind::Children | WaitKind::Resume => None,
    }
}

/// Returns the moment of a record's time on the clock of this process.
fn since(at: Timestamp) -> Instant {
    let now = Instant::now();
    let age = Duration::try_from(time::now().duration_since(at)).unwrap_or_default();
    now.checked_sub(age).unwrap_or(now)
}

/// Formats a duration without tenths, which would only flicker.
fn whole_seconds(duration: Duration) -> String {
    match duration {
        short if short.as_secs() < 60 => format!("{}s", short.as_secs()),
        long => time::lasted(long),
    }
}

/// Returns the log of the attempt of an event.
fn log_of(event: &Event) -> Option<StepLog> {
    let at = Try { attempt: event.attempt?, iteration: event.iteration.clone(), epoch: event.epoch };
    Some(StepLog::new(&event.run, &event.scope, event.step.as_ref()?, &at))
}

/// Returns the scope of an event's step: the step of an item event is its opener.
fn scope_of(event: &Event) -> Option<ScopePath> {
    match event.what {
        EventKind::ItemStarted { .. } | EventKind::ItemCompleted { .. } | EventKind::ItemDead { .. } => {
            event.scope.parent()
        }
        _ => Some(event.scope.clone()),
    }
}

impl NextAttempt {
    fn line(&self, step: &str, now: Timestamp, columns: usize) -> String {
        let when = match self.at.map(|at| Duration::try_from(at.duration_since(now)).unwrap_or_default()) {
            Some(rest) if !rest.is_zero() => format!(" in {}", whole_seconds(rest)),
            _ => String::new(),
        };
        fitted("  retry ", step, &format!(" attempt {}{when}", self.attempt), columns)
    }
}

impl Items {
    /// Creates an empty count.
    fn since(since: Instant) -> Self {
        Self { since, total: None, ended: 0, failed: 0, log: None }
    }

    fn told(&self) -> String {
        let failed = if self.failed == 0 { String::new() } else { format!(", {} failed", self.failed) };
        let items = if self.total.unwrap_or(self.ended) == 1 { "item" } else { "items" };
        match self.total {
            Some(total) => format!("{} of {total} {items}{failed}", self.ended),
            None => format!("{} more {items}{failed}", self.ended),
        }
    }

    /// Formats the count, with a bar if the total is known and the columns suffice.
    fn bar(&self, step: &str, columns: usize) -> String {
        let told = format!(" {} {}", self.told(), whole_seconds(self.since.elapsed()));
        let indent = "        ";
        let Some(total) = self.total.filter(|total| *total > 0) else {
            return fitted(indent, step, &told, columns);
        };
        let full = usize::try_from(self.ended.min(total) * BAR_COLUMNS / total).unwrap_or_default();
        let rest = usize::try_from(BAR_COLUMNS).unwrap_or_default() - full;
        let line = format!("{indent}{step} [{}{}]{told}", "#".repeat(full), ".".repeat(rest));
        if super::region::fits(&line, columns) { line } else { fitted(indent, step, &told, columns) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use jiff::Timestamp;
    use waypost::events::{Cursor, EVENT_VERSION, Event, EventKind};
    use waypost::record::End;
    use waypost::{RunId, ScopePath, StepId};

    use super::{HEARTBEAT, StepNames, StepProgress, log_of};

    fn event(scope: &str, step: &str, what: EventKind) -> Event {
        let scope = ScopePath::new(scope).unwrap();
        Event {
            v: EVENT_VERSION,
            cursor: Cursor { scope: scope.clone(), seq: 1, index: 0 },
            ts: Timestamp::UNIX_EPOCH,
            run: RunId::new("r").unwrap(),
            scope,
            seq: 1,
            parents: Vec::new(),
            step: Some(StepId::new(step).unwrap()),
            attempt: Some(1),
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
        let start = event("main", "each", EventKind::StepStarted);
        let log = || log_of(&start).unwrap();
        seen.take(&start, None);
        let began = seen.running["each"].since;
        let found = EventKind::Progress { key: "items".to_owned(), value: 2.into() };
        seen.take(&event("main", "each", found), None);
        seen.take(&event("each:a", "each", dead()), None);
        assert_eq!(seen.items["each"].told(), "1 of 2 items, 1 failed");

        seen.join("each".to_owned(), log());
        seen.take(&event("each:b", "each", dead()), None);

        assert!(seen.items.is_empty(), "{:?}", seen.items);
        assert_eq!(seen.running["each"].since, began);
        // A session that did not see the number of items.
        let mut seen = StepProgress::from(Instant::now());
        seen.take(&event("each:b", "each", dead()), None);
        assert_eq!(seen.items["each"].told(), "1 more item, 1 failed");
    }

    // What happened: a finished group had the row `grp 1 more item`, and seemed to have taken 5ms.
    // Why: the scope of a group counted as an item, and the time of the step began at the join.
    // What stops it now: only scopes of a `foreach` count, and the first scope begins the time of its step.
    #[test]
    fn a_group_has_no_row_of_items() {
        let text = "steps: [{id: g, steps: [{id: a, run: a}]}, {id: e, foreach: {items: [1], steps: [{id: b, run: b}]}}]";
        let workflow = waypost_workflow::file::Workflow::parse(text, std::path::Path::new("w.yaml")).unwrap();
        let mut seen = StepProgress::from(Instant::now());
        seen.names = StepNames::of(&workflow);
        let ended = || EventKind::ItemCompleted { key: "1".to_owned(), end: End::Completed };
        seen.take(&event("g~1", "g", EventKind::ItemStarted { key: "1".to_owned() }), None);
        let began = seen.opened["g"];

        seen.take(&event("g~1", "g", ended()), None);
        seen.take(&event("e:1", "e", ended()), None);
        seen.join("g".to_owned(), log_of(&event("main", "g", EventKind::StepStarted)).unwrap());

        assert_eq!(seen.items.keys().collect::<Vec<_>>(), ["e"]);
        assert_eq!(seen.running["g"].since, began);
    }

    #[test]
    fn each_minute_of_silence_has_a_line() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut seen = StepProgress::from(begin);
        let start = event("main", "build", EventKind::StepStarted);
        seen.start("build".to_owned(), at(10), log_of(&start));
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

        let stops = "Ctrl-C stops, resumable";
        assert_eq!(seen.status(77, stops), "1/3 steps; Ctrl-C stops, resumable");
        assert_eq!(seen.status(37, stops), "1/3 steps; Ctrl-C stops, resumable");
        seen.stopping = Some(waypost::engine::StopLevel::Graceful);
        assert_eq!(seen.status(37, stops), "stopping; Ctrl-C kills the steps");
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

    #[test]
    fn more_steps_than_rows_are_counted() {
        let mut seen = StepProgress::from(Instant::now());
        for step in ["first", "second", "third", "a-very-long-name-of-a-step"] {
            let start = event("main", step, EventKind::StepStarted);
            seen.start(step.to_owned(), Instant::now(), log_of(&start));
        }

        assert_eq!(
            seen.lines('|', 3, 24),
            ["      | \u{2026}me-of-a-step 0s", "      | third 0s", "        +2 more"]
        );
        assert_eq!(seen.lines('|', 4, 24).len(), 4);
        assert_eq!(seen.newest(2), ["a-very-long-name-of-a-step", "third"]);
    }
}
