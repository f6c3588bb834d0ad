//! What is seen of a run while it works: a live region on a terminal, a line an event elsewhere, JSON where asked.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use waypost::StepId;
use waypost::engine::{Observer, StopLevel};
use waypost::events::{self, Event, EventKind};
use waypost::record::{Position, Record};
use waypost::store;

use super::Output;
use crate::commands::event_line;
use crate::time;

/// After so long without an event, a line says that the run is alive: log viewers give up on silent jobs later.
const HEARTBEAT: Duration = Duration::from_secs(60);
/// How often the live region moves: smooth for an eye, nothing for a processor.
const TICK: Duration = Duration::from_millis(120);
/// Most steps under way that have a line of their own in the live region; it must fit a small terminal.
const LINES_MAX: usize = 8;

/// Shows a run under way.
#[derive(Debug)]
pub(crate) struct Progress {
    output: Output,
    live: Option<Live>,
    seen: Mutex<Seen>,
}

/// What was seen so far.
#[derive(Debug)]
struct Seen {
    running: BTreeMap<StepId, Instant>,
    progress: store::Progress,
    checkpoint: Option<(String, Instant)>,
    last_line: Instant,
    stopping: Option<StopLevel>,
    /// Nobody reads the JSON lines any more.
    deaf: bool,
}

/// The live region: a line for each step under way, and one for the run.
#[derive(Debug)]
struct Live {
    region: MultiProgress,
    status: ProgressBar,
    steps: Mutex<BTreeMap<StepId, ProgressBar>>,
}

impl Progress {
    /// Chooses how to show it.
    pub(crate) fn new(output: &Output) -> Self {
        let live = (output.live && !output.json && !output.quiet).then(Live::new);
        Self { output: output.clone(), live, seen: Mutex::new(Seen::from(Instant::now())) }
    }

    /// Says now and then that the run is alive, for as long as it is polled.
    pub(crate) async fn keep_fresh(&self) {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let mut seen = self.seen();
            if let Some(live) = &self.live {
                live.status.set_message(seen.status());
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
            Some(live) => live.status.set_message(seen.status()),
            None if !self.output.json => self.output.note(&text),
            None => {}
        }
    }

    /// Takes the live region away.
    pub(crate) fn close(&self) {
        if let Some(live) = &self.live {
            live.status.finish_and_clear();
            for bar in live.steps.lock().unwrap_or_else(PoisonError::into_inner).values() {
                bar.finish_and_clear();
            }
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn show(&self, seen: &mut Seen, event: &Event) {
        if self.output.json {
            // A run does not end because its reader went away.
            seen.deaf = seen.deaf || self.output.line(event).is_err();
            return;
        }
        let noisy = matches!(event.what, EventKind::CheckpointWritten { .. });
        if let Some(live) = &self.live {
            live.show(&self.output, seen, event);
        } else if !noisy || self.output.verbose {
            self.output.note(&event_line(event));
            seen.last_line = Instant::now();
        }
    }
}

impl Observer for Progress {
    fn committed(&self, records: &[Record], _: &Position, progress: store::Progress) {
        let mut seen = self.seen();
        seen.progress = progress;
        for record in records {
            for event in events::of(record.header()) {
                if !seen.deaf {
                    self.show(&mut seen, &event);
                }
                seen.take(&event);
            }
        }
        if let Some(last) = records.last() {
            seen.checkpoint = Some((format!("@{}", last.header().seq), Instant::now()));
        }
        if let Some(live) = &self.live {
            live.follow(&seen);
        }
    }

    fn warned(&self, text: &str) {
        match &self.live {
            Some(live) => live.region.suspend(|| self.output.warn(text)),
            None => self.output.warn(text),
        }
    }
}

impl Seen {
    /// Has seen nothing since `now`.
    fn from(now: Instant) -> Self {
        Self {
            running: BTreeMap::new(),
            progress: store::Progress::default(),
            checkpoint: None,
            last_line: now,
            stopping: None,
            deaf: false,
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
        let Some(step) = &event.step else { return };
        match event.what {
            EventKind::StepStarted => drop(self.running.insert(step.clone(), Instant::now())),
            EventKind::StepCompleted(_)
            | EventKind::StepFailed(_)
            | EventKind::StepRetried(_)
            | EventKind::StepSkipped { .. }
            | EventKind::Interrupted { .. } => drop(self.running.remove(step)),
            _ => {}
        }
    }

    fn under_way(&self, now: Instant) -> String {
        let lasted = |since: &Instant| time::lasted(now.saturating_duration_since(*since));
        let step = |(step, since): (&StepId, &Instant)| format!("{step} for {}", lasted(since));
        let steps: Vec<String> = self.running.iter().map(step).collect();
        let steps =
            if steps.is_empty() { "waiting for the next attempt".to_owned() } else { steps.join(", ") };
        let checkpoint = self.checkpoint.as_ref();
        let checkpoint = checkpoint
            .map(|(at, since)| format!("; checkpoint {at} {} ago", lasted(since)))
            .unwrap_or_default();
        format!("{steps}{checkpoint}")
    }

    fn status(&self) -> String {
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
        format!("{done}/{total} steps, {checkpoint}; {next}")
    }
}

impl Live {
    fn new() -> Self {
        let region = MultiProgress::with_draw_target(ProgressDrawTarget::stderr());
        let status = region.add(ProgressBar::new_spinner().with_style(style("{wide_msg}")));
        Self { region, status, steps: Mutex::default() }
    }

    /// Scrolls up what has ended.
    fn show(&self, output: &Output, seen: &Seen, event: &Event) {
        let paint = output.paint_err;
        let step = event.step.as_ref().map(StepId::as_str).unwrap_or_default();
        let took = event.step.as_ref().and_then(|step| seen.running.get(step));
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
            _ => return,
        };
        // A terminal that went away: there is nothing to show any more.
        let _ = self.region.println(text);
    }

    /// Makes the region say what is under way now.
    fn follow(&self, seen: &Seen) {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        steps.retain(|step, bar| {
            let runs = seen.running.contains_key(step);
            if !runs {
                bar.finish_and_clear();
                self.region.remove(bar);
            }
            runs
        });
        for step in seen.running.keys() {
            if steps.len() < LINES_MAX && !steps.contains_key(step) {
                let bar = ProgressBar::new_spinner().with_style(style("{spinner:>7} {msg} {elapsed}"));
                let bar = self.region.insert_before(&self.status, bar.with_message(step.to_string()));
                bar.enable_steady_tick(TICK);
                steps.insert(step.clone(), bar);
            }
        }
        self.status.set_message(seen.status());
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the template is well-formed").tick_chars("|/-\\ ")
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{HEARTBEAT, Seen};

    #[test]
    fn each_minute_of_silence_has_a_line() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut seen = Seen::from(begin);
        seen.running.insert("build".parse().expect("a step id"), at(10));
        seen.checkpoint = Some(("@2".to_owned(), at(10)));

        let lines: Vec<(u64, String)> =
            (1..=185).filter_map(|second| seen.heartbeat(at(second)).map(|line| (second, line))).collect();

        assert_eq!(HEARTBEAT, Duration::from_secs(60));
        let line = |minutes: &str| format!("still working: build for {minutes}; checkpoint @2 {minutes} ago");
        assert_eq!(lines, [(60, line("50.0s")), (120, line("1m50s")), (180, line("2m50s"))]);
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
