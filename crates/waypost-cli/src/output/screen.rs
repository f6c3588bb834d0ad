//! The screen of a run: a thread that prints events and printed text of steps, or draws the live region.
//!
//! The thread alone writes while the screen is open. Lines of parallel steps therefore never mix, and the last
//! output of a step precedes the line about its end.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::runtime::Runtime;
use waypost::engine::{StopLevel, Waiting};
use waypost::events::{self, Event, EventKind};
use waypost::record::{Phase, Record};
use waypost::store::{self, Store};

use super::event_line::EventLines;
use super::region::{Region, Size};
use super::step_log::{ReadTo, StepLog};
use super::step_progress::StepProgress;
use super::{Output, actions};
use crate::format::wrap::fit;
use crate::format::{terminal, time};
use crate::view::step_names::StepNames;

/// Why lines on stdout stopped.
pub(super) type Unheard = Arc<Mutex<Option<io::Error>>>;

/// What the progress is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProgressOf {
    /// A run of this process.
    Run,
    /// Runs of this process, one after the other.
    Runs,
    /// A run of another process. Without a live region, the lines are the answer, on stdout.
    WatchedRun,
}

/// Refresh interval: smooth for an eye, and cheap.
const TICK: Duration = Duration::from_millis(120);
/// Interval of the heartbeat check without a region and without logs.
const SLOW_TICK: Duration = Duration::from_secs(1);
/// Frames of the spinner before a running step.
const SPINNER: [char; 4] = ['|', '/', '-', '\\'];
/// Bytes of lines written at once.
const WRITE_BYTES: usize = 64 * 1024;
/// Most messages in the queue of the screen; a full queue delays the run, as a full pipe would.
const MESSAGES_MAX: usize = 256;

/// What the screen shows next.
pub(super) enum Message {
    /// The work begins: ticks from now on.
    Open {
        names: StepNames,
        /// The logs of services to follow.
        services: BTreeMap<String, StepLog>,
    },
    /// A line of its own.
    Note(String),
    Warning(String),
    Committed {
        records: Vec<Record>,
        progress: store::Progress,
        /// Older than the screen: not shown on a terminal.
        is_past: bool,
    },
    /// The open waits of a run without work, and its progress.
    Waits(Vec<Waiting>, store::Progress),
    Stopping(StopLevel, String),
    /// A question at the end of the screen, until the answer.
    Question(String),
    Answered {
        ends_line: bool,
        done: Sender<()>,
    },
    /// Print the rest, remove the region and answer.
    Close(Sender<()>),
}

/// The state of the thread.
pub(super) struct Screen {
    output: Output,
    of: ProgressOf,
    store: Arc<OnceLock<Weak<dyn Store>>>,
    unheard: Unheard,
    seen: StepProgress,
    region: Region,
    began: Instant,
    is_open: bool,
    /// A person is asked: nothing else is written.
    is_asking: bool,
    /// Lines to print at the next refresh, above the region.
    above: String,
    polled: Instant,
}

impl Screen {
    pub(super) fn new(
        output: &Output,
        of: ProgressOf,
        store: Arc<OnceLock<Weak<dyn Store>>>,
        unheard: Unheard,
    ) -> Self {
        let now = Instant::now();
        Self {
            output: output.clone(),
            of,
            store,
            unheard,
            seen: StepProgress::from(now),
            region: Region::default(),
            began: now,
            is_open: false,
            is_asking: false,
            above: String::new(),
            polled: now,
        }
    }

    /// Starts the thread, and returns the queue of its messages.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(super) fn start(mut self) -> io::Result<SyncSender<Message>> {
        let (sender, receiver) = mpsc::sync_channel(MESSAGES_MAX);
        // Without drivers, the runtime has no descriptors.
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        std::thread::Builder::new()
            .name("screen".to_owned())
            .spawn(move || self.show(&receiver, &runtime))?;
        Ok(sender)
    }

    fn show(&mut self, messages: &Receiver<Message>, runtime: &Runtime) {
        loop {
            let message = match self.tick() {
                None => messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(tick) => messages.recv_timeout(tick),
            };
            match message {
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
                Ok(message) => {
                    let more = messages.try_iter().take(MESSAGES_MAX);
                    for message in std::iter::once(message).chain(more) {
                        self.take(message, runtime);
                    }
                }
            }
            if self.is_open && !self.is_asking {
                self.refresh(runtime);
            }
            self.flush();
        }
    }

    /// Returns the time to the next refresh; `None` for a closed screen.
    fn tick(&self) -> Option<Duration> {
        let follows = self.output.live || self.output.prints_lines() && !self.seen.running.is_empty();
        self.is_open.then_some(if follows { TICK } else { SLOW_TICK })
    }

    fn take(&mut self, message: Message, runtime: &Runtime) {
        match message {
            Message::Open { names, services } => {
                self.is_open = true;
                self.seen.names = names;
                self.seen.services.extend(services);
            }
            Message::Waits(waiting, progress) => {
                self.seen.progress = progress;
                for Waiting { scope, step, wait } in &waiting {
                    self.seen.wait(self.seen.names.called(scope, step.as_str()), std::slice::from_ref(wait));
                }
            }
            Message::Note(text) => self.print(&self.fitted(&text)),
            Message::Warning(text) => self.print(&self.fitted(&self.output.warning(&text))),
            Message::Stopping(level, text) => {
                self.seen.stopping = Some(level);
                if !self.output.live {
                    self.print(&text);
                }
            }
            Message::Committed { records, progress, is_past } => {
                self.seen.progress = progress;
                for record in &records {
                    self.take_record(record, is_past && self.output.live, runtime);
                }
            }
            Message::Question(prompt) => {
                self.flush();
                self.region.draw("", &[]);
                self.is_asking = true;
                self.output.prompt(&prompt);
            }
            Message::Answered { ends_line, done } => {
                if self.is_asking && ends_line {
                    self.output.aside("");
                }
                self.is_asking = false;
                self.flush();
                // The caller may be gone.
                let _ = done.send(());
            }
            Message::Close(done) => {
                self.finish_logs(runtime);
                self.is_open = false;
                self.flush();
                // The caller may be gone.
                let _ = done.send(());
            }
        }
    }

    fn take_record(&mut self, record: &Record, is_hidden: bool, runtime: &Runtime) {
        let header = record.header();
        let retry_at = retry_at(record);
        let goes_on = matches!(&header.phase, Phase::Started | Phase::Progress { .. } | Phase::Restored);
        if let Some(step) = header.step.as_ref().filter(|_| !goes_on && self.output.prints_lines()) {
            self.finish_log(&self.seen.names.called(&header.scope, step.as_str()), runtime);
        }
        let events = events::of(record);
        for event in &events {
            if !is_hidden {
                self.show_event(event, record);
            }
            if matches!(event.what, EventKind::StepCompleted(_))
                && events.iter().any(|other| serves(other, event))
            {
                self.seen.keep_service(event);
            }
            self.seen.take(event, retry_at);
        }
        if let (Phase::Waiting(waits), Some(step)) = (&header.phase, &header.step) {
            self.seen.wait(self.seen.names.called(&header.scope, step.as_str()), waits);
        }
        for start in header.started.iter().filter(|start| start.joins) {
            let log = StepLog::new(&header.run, &header.scope, &start.step, &start.at);
            self.seen.join(self.seen.names.called(&header.scope, start.step.as_str()), log);
        }
        self.seen.checkpoint(header.seq, header.created_at);
    }

    fn show_event(&mut self, event: &Event, record: &Record) {
        let is_end = matches!(
            event.what,
            EventKind::StepCompleted(_)
                | EventKind::StepFailed(_)
                | EventKind::StepRetried(_)
                | EventKind::Interrupted { .. }
        );
        if self.output.live {
            if let Some(text) = self.told(event) {
                self.print(&self.fitted(&text));
            }
            return;
        }
        if matches!(event.what, EventKind::CheckpointWritten { .. }) && !self.output.verbose {
            return;
        }
        let group = (self.output.actions && self.output.logs && is_end).then(|| self.group(event, record));
        let line = group.flatten().unwrap_or_else(|| self.lines_of_events().line(event));
        self.print(&line);
    }

    fn lines_of_events(&self) -> EventLines<'_> {
        let of_many = self.of == ProgressOf::Runs;
        EventLines { of_many, digests: self.output.verbose, names: &self.seen.names }
    }

    /// Returns a text in lines that fit the terminal.
    fn fitted(&self, text: &str) -> String {
        let size = terminal::size_of(&io::stderr()).filter(|_| self.output.live);
        size.map_or_else(|| text.to_owned(), |(columns, _)| fit(text, columns))
    }

    /// Prints lines that stay, at the next refresh.
    fn print(&mut self, text: &str) {
        self.seen.last_line = Instant::now();
        self.above.push_str(text);
        self.above.push('\n');
        if self.above.len() >= WRITE_BYTES {
            self.flush();
        }
    }

    /// Writes the lines of [`Screen::print`]; removes the region.
    fn flush(&mut self) {
        if self.is_asking {
            return;
        }
        let above = std::mem::take(&mut self.above);
        if self.output.live {
            if !self.is_open || !above.is_empty() {
                self.region.draw(&above, &[]);
            }
        } else if self.of == ProgressOf::WatchedRun {
            if let Err(error) = self.output.bytes(above.as_bytes()) {
                *self.unheard.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            }
        } else if !above.is_empty() {
            self.output.aside(above.trim_end_matches('\n'));
        }
    }

    /// Reads the logs, and draws the region or prints a heartbeat.
    fn refresh(&mut self, runtime: &Runtime) {
        if self.polled.elapsed() >= TICK {
            self.read_logs(runtime);
            self.polled = Instant::now();
        }
        if !self.output.live {
            if let Some(text) = self.seen.heartbeat(Instant::now()) {
                self.print(&format!("{}  {text}", time::utc(time::now())));
            }
            return;
        }
        let turn = self.began.elapsed().as_millis() / TICK.as_millis();
        let spinner = SPINNER[usize::try_from(turn % SPINNER.len() as u128).unwrap_or_default()];
        let size = Size::now();
        let ctrl_c = match self.of {
            ProgressOf::WatchedRun => "Ctrl-C ends only the watching",
            ProgressOf::Run | ProgressOf::Runs => "Ctrl-C stops, resumable",
        };
        let (room, columns) = (size.lines() - 1, size.line_columns());
        let mut lines = self.seen.lines(spinner, room, columns);
        lines.push(self.seen.status(columns, ctrl_c));
        self.region.draw(&std::mem::take(&mut self.above), &lines);
    }

    /// Reads new text of running steps: of all to print it, else of those in the region.
    fn read_logs(&mut self, runtime: &Runtime) {
        let Some(store) = self.store.get().and_then(Weak::upgrade) else { return };
        if !self.output.prints_lines() {
            if self.output.live {
                for step in self.seen.newest(Size::now().lines()) {
                    let Some(running) = self.seen.running.get_mut(&step) else { continue };
                    // The next read tries again.
                    let _ = runtime.block_on(running.log.read(store.as_ref(), ReadTo::End, drop));
                }
            }
            return;
        }
        let running = self.seen.running.iter_mut().map(|(step, running)| (step, &mut running.log));
        let mut lines = Vec::new();
        for (step, log) in running.chain(&mut self.seen.services) {
            let name = name_in_lines(self.of, step, log);
            let each = |line: String| lines.push(format!("{name} | {line}"));
            let _ = runtime.block_on(log.read(store.as_ref(), ReadTo::NextChunks, each));
        }
        lines.iter().for_each(|line| self.print(line));
    }

    /// Prints the rest of the log of a step whose work has ended, or continues in scopes.
    fn finish_log(&mut self, step: &str, runtime: &Runtime) {
        let Some(mut running) = self.seen.running.remove(step) else { return };
        self.print_rest(step, &mut running.log, runtime);
        self.seen.running.insert(step.to_owned(), running);
    }

    fn print_rest(&mut self, step: &str, log: &mut StepLog, runtime: &Runtime) {
        let Some(store) = self.store.get().and_then(Weak::upgrade) else { return };
        let name = name_in_lines(self.of, step, log);
        let each = |line: String| self.print(&format!("{name} | {line}"));
        let _ = runtime.block_on(log.read(store.as_ref(), ReadTo::End, each));
        if let Some(line) = log.finish() {
            self.print(&format!("{name} | {line}"));
        }
    }

    /// Prints the rest of all logs: of services, and of steps whose end was not recorded.
    fn finish_logs(&mut self, runtime: &Runtime) {
        let running = std::mem::take(&mut self.seen.running);
        let mut logs: BTreeMap<String, StepLog> = std::mem::take(&mut self.seen.services);
        logs.extend(running.into_iter().map(|(step, running)| (step, running.log)));
        if self.output.prints_lines() {
            for (step, mut log) in logs {
                self.print_rest(&step, &mut log, runtime);
            }
        }
    }

    /// Formats the printed text of an ended step as a group.
    fn group(&self, event: &Event, record: &Record) -> Option<String> {
        let header = record.header();
        let step = self.seen.name_of(event)?;
        let took = time::lasted(self.seen.lasted(&step).unwrap_or_default());
        let step = if self.of == ProgressOf::Runs { format!("{}: {step}", header.run) } else { step };
        let folder = self.store.get().and_then(Weak::upgrade).and_then(|store| store.folder(&header.run));
        actions::group((&step, &took), header, folder.as_deref())
    }

    /// Returns a line about an ended step, if the event is one.
    fn told(&self, event: &Event) -> Option<String> {
        let paint = self.output.paint_err;
        let step = self.seen.name_of(event).unwrap_or_default();
        let took = self.seen.lasted(&step);
        let took = took.map(|took| format!(" ({})", time::lasted(took))).unwrap_or_default();
        let step = self.seen.titled(&step);
        let why = |error: &[String]| {
            let first = self.seen.names.plain(error.first().map_or("", String::as_str));
            super::shown(&first).into_owned()
        };
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
            EventKind::ItemDead { key, .. } if self.seen.counts_items(event) => {
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

/// Returns the name before the lines of a step: with several runs, the run too.
fn name_in_lines(of: ProgressOf, step: &str, log: &StepLog) -> String {
    if of == ProgressOf::Runs { format!("{}: {step}", log.run()) } else { step.to_owned() }
}

/// Returns whether an event says that the completed step of `end` runs on as a service.
fn serves(event: &Event, end: &Event) -> bool {
    matches!(event.what, EventKind::ServiceStarted { .. }) && event.step == end.step
}

/// Returns the time of the next attempt, of a record about a failed attempt with a delay.
fn retry_at(record: &Record) -> Option<Timestamp> {
    let header = record.header();
    if !matches!(&header.phase, Phase::Failed(failure) if failure.retried) {
        return None;
    }
    let position = record.position().ok()?;
    position.frontier.iter().find(|entry| Some(&entry.step) == header.step.as_ref())?.wake_at
}
