//! `waypost doctor`: checks configuration, machine, store and runs, with a hint for each problem. It finishes interrupted
//! deletions, and changes nothing else.
//!
//! A failed check does not end the others; without a store, the checks of the store are left out. The exit code is that of
//! the first failed check.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::Access as Permission;
use waypost::RunId;
use waypost::lock::{Holder, network_file_system};
use waypost::store::{PAGE_ITEMS_MAX, RunQuery, RunSummary, Store, StoreError, UnreadableRun};
use waypost_sqlite::{SCHEMA_VERSION, schema_of};
use waypost_workflow::program::processes_of;

use super::Context;
use crate::config::Config;
use crate::error::{Diagnosis, Error};
use crate::exit::Exit;
use crate::format::size;
use crate::format::time;
use crate::run::environment::Local;
use crate::run::keepalive;
use crate::run::run_status::{self, Correction};
use crate::store_location::{Access, StoreUrl};
use crate::view::Origin;
use crate::view::{CheckupView, DoctorView, VERSION};

/// Free bytes below which runs soon fail: the size of a large state with its log and that of SQLite.
const FREE_BYTES_MIN: u64 = 64 << 20;
/// Free bytes below which `doctor` warns.
const FREE_BYTES_FEW: u64 = 1 << 30;
/// Free inodes below which `doctor` warns: a file store writes one file for each commit.
const FREE_FILES_FEW: u64 = 10_000;
/// The most by which a record may be ahead of the clock: the clocks of machines that share a store differ by less.
const AHEAD_MAX: Duration = Duration::from_secs(60);
/// The number of newest runs whose newest records are read: a few seconds. `verify --all` reads every record of every run.
const RUNS_READ_MAX: usize = 1_000;
/// The most runs named on one line.
const NAMED_MAX: usize = 5;

/// The results of the checks, in order.
#[derive(Debug, Default)]
struct Checkup {
    checks: Vec<CheckupView>,
    /// The exit code of the first failed check.
    exit: Option<Exit>,
}

impl Checkup {
    fn ok(&mut self, check: &'static str, message: impl Into<String>) {
        self.push(check, "ok", message.into(), None);
    }

    fn warn(&mut self, check: &'static str, message: impl Into<String>, hint: impl Into<String>) {
        self.push(check, "warn", message.into(), Some(hint.into()));
    }

    fn fail(&mut self, check: &'static str, exit: Exit, message: impl Into<String>, hint: Option<String>) {
        self.exit.get_or_insert(exit);
        self.push(check, "fail", message.into(), hint);
    }

    fn error(&mut self, check: &'static str, error: &Error) {
        let Diagnosis { exit, message, hint, causes, .. } = error.diagnosis();
        let message = std::iter::once(message).chain(causes).collect::<Vec<_>>().join(": ");
        self.fail(check, exit, message, hint);
    }

    fn push(&mut self, check: &'static str, result: &'static str, message: String, hint: Option<String>) {
        self.checks.push(CheckupView { check, result, message, hint });
    }
}

/// The runs of the store, as listed.
struct Runs {
    listed: Vec<RunSummary>,
    unreadable: Vec<UnreadableRun>,
}

pub(crate) async fn doctor(context: &Context) -> Result<Exit, Error> {
    let mut checkup = Checkup::default();
    configuration(&mut checkup);
    machine(context, &mut checkup)?;
    if let Some(store) = open(context, &mut checkup) {
        medium(store.as_ref(), &mut checkup);
        deletions(context, store.as_ref(), &mut checkup).await;
        if let Some(runs) = contents(store.as_ref(), &mut checkup).await {
            locks(&runs, &mut checkup);
            processes(store.as_ref(), &runs, &mut checkup);
            clock(context, &runs, &mut checkup);
        }
    }
    let exit = checkup.exit.unwrap_or(Exit::Done);
    let mut checks = checkup.checks;
    for check in &mut checks {
        check.hint = check.hint.take().map(|hint| context.with_store(&hint));
    }
    let view = DoctorView { v: VERSION, ok: exit == Exit::Done, checks };
    if context.output.json {
        context.output.document(&view)?;
    } else {
        context.output.checked(exit, &report_text(context, &view))?;
    }
    Ok(exit)
}

fn configuration(checkup: &mut Checkup) {
    const NAME: &str = "configuration";
    let config = Config::find(None).and_then(|config| config.store().map(|_| config));
    match config {
        // The message has the first problem; the causes would list all of them.
        Err(error) => {
            let Diagnosis { exit, message, .. } = error.diagnosis();
            let hint = "fix or remove the file: most commands refuse to run until then; `waypost config` \
                        lists the places";
            checkup.fail(NAME, exit, message, Some(hint.to_owned()));
        }
        Ok(config) => {
            let read = config.places().into_iter().filter(|(_, place)| place.file.is_some());
            let read =
                read.filter_map(|(_, place)| place.path.as_deref().map(|path| path.display().to_string()));
            let read: Vec<_> = read.collect();
            let none = || "no configuration file; all values are defaults".to_owned();
            checkup.ok(
                NAME,
                if read.is_empty() { none() } else { format!("{} holds together", read.join(", ")) },
            );
        }
    }
}

fn machine(context: &Context, checkup: &mut Checkup) -> Result<(), Error> {
    match Holder::here(context.now()) {
        Ok(here) if here.boot_id.is_empty() => checkup.warn(
            "boot",
            "the boot id of the system is unknown",
            "after a reboot, a run whose process id is in use again counts as running",
        ),
        Ok(here) => checkup.ok("boot", format!("boot id {}", here.boot_id)),
        Err(error) => checkup.warn(
            "boot",
            format!("cannot read process information: {error}"),
            "mount `/proc`: dead processes are detected through it",
        ),
    }
    if Local::detect()?.has_bash {
        checkup.ok("shell", "steps run with bash");
    } else {
        checkup.warn(
            "shell",
            "bash is not in PATH: steps run with sh, without `pipefail`",
            "install bash, or set another `shell`",
        );
    }
    Ok(())
}

/// Opens the store for reading. A store that does not exist yet is no failure.
fn open(context: &Context, checkup: &mut Checkup) -> Option<Arc<dyn Store>> {
    const NAME: &str = "store";
    let by = match context.store_given().1 {
        Origin::Flag => "from --store",
        Origin::Environment => "named by WAYPOST_STORE",
        Origin::Workflow => "from the workflow file",
        Origin::Project => "from the configuration of the project",
        Origin::User => "from the configuration of the user",
        Origin::Default => "the nearest",
    };
    match context.store(None, Access::Read) {
        Ok(store) => {
            checkup.ok(NAME, format!("{store} opens ({by})"));
            Some(store)
        }
        Err(error @ (Error::NoStore { .. } | Error::NoRuns { .. } | Error::NotFound { .. })) => {
            checkup.warn(NAME, error.to_string(), "`waypost run FILE` creates a store");
            None
        }
        Err(error) => {
            checkup.error(NAME, &error);
            None
        }
    }
}

/// Checks the schema version, the file system, the free space and the permissions of the store.
fn medium(store: &dyn Store, checkup: &mut Checkup) {
    let sqlite = match StoreUrl::parse(&store.to_string()) {
        Ok(StoreUrl::Sqlite(path)) => Some(path),
        _ => None,
    };
    if let Some(path) = &sqlite {
        schema(path, checkup);
    }
    let Some(home) = store.home().map(Path::to_owned) else { return };
    match network_file_system(&home) {
        Ok(None) => {}
        Ok(Some(kind)) => checkup.warn(
            "disk",
            format!("{} is on {kind}, a network file system with unreliable locks", home.display()),
            "move the store to a local disk",
        ),
        Err(error) => checkup.warn(
            "disk",
            format!("cannot determine the file system of {}: {error}", home.display()),
            "check the mount",
        ),
    }
    room(&home, checkup);
    let places: Vec<PathBuf> = sqlite.into_iter().chain([home]).collect();
    let read_only =
        places.iter().find(|path| rustix::fs::access(path.as_path(), Permission::WRITE_OK).is_err());
    match read_only {
        None => checkup.ok("permission", "the store is writable"),
        Some(path) => checkup.warn(
            "permission",
            format!("{} is not writable by this user", path.display()),
            "runs can be read, but not created or resumed: check owner, mode and mount",
        ),
    }
}

fn schema(path: &Path, checkup: &mut Checkup) {
    match schema_of(path) {
        Ok(SCHEMA_VERSION) => {
            checkup.ok("schema", format!("version {SCHEMA_VERSION}, the newest version supported"))
        }
        Ok(found) => checkup.warn(
            "schema",
            format!("version {found}; this program writes version {SCHEMA_VERSION}"),
            "the next command that writes upgrades the store, after a backup",
        ),
        Err(error) => checkup.error("schema", &error.into()),
    }
}

fn room(home: &Path, checkup: &mut Checkup) {
    let found = match rustix::fs::statvfs(home) {
        Ok(found) => found,
        Err(error) => {
            return checkup.warn(
                "room",
                format!("cannot determine the free space: {error}"),
                "check with `df`",
            );
        }
    };
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    let message = format!("{} free on the disk of the store", size::shown(free));
    let hint = "free space: `waypost prune` drops old states and runs";
    if free < FREE_BYTES_MIN {
        checkup.fail("room", Exit::CannotWrite, message, Some(hint.to_owned()));
    } else if free < FREE_BYTES_FEW {
        checkup.warn("room", message, hint);
    } else if found.f_files > 0 && found.f_favail < FREE_FILES_FEW {
        checkup.warn("room", format!("{message}, but only {} inodes", found.f_favail), hint);
    } else {
        checkup.ok("room", message);
    }
}

/// Finishes interrupted deletions of runs.
async fn deletions(context: &Context, store: &dyn Store, checkup: &mut Checkup) {
    const NAME: &str = "deletions";
    let begun = match store.deletions().await {
        Ok(begun) if begun.is_empty() => return,
        Ok(begun) => begun,
        Err(error) => return checkup.error(NAME, &error.into()),
    };
    let writing = match context.store(None, Access::Write) {
        Ok(writing) => writing,
        Err(error) => return checkup.error(NAME, &error),
    };
    for run in begun {
        match writing.delete(&run).await {
            // Another process was faster.
            Ok(()) | Err(StoreError::NotFound { .. }) => {
                checkup.ok(NAME, format!("finished the interrupted deletion of run {run}"));
            }
            Err(StoreError::Held { .. }) => checkup.ok(NAME, format!("run {run} is being deleted")),
            Err(error) => checkup.error(NAME, &error.into()),
        }
    }
}

/// Checks the derived data of the store, lists the runs and checks them.
async fn contents(store: &dyn Store, checkup: &mut Checkup) -> Option<Runs> {
    match store.inspect(None).await {
        Ok(findings) if findings.is_empty() => {
            checkup.ok("integrity", "the derived data of the store is consistent")
        }
        Ok(findings) => {
            let hint = Some("`waypost verify --all` checks every byte".to_owned());
            checkup.fail("integrity", Exit::Damaged, findings.join("; "), hint);
        }
        Err(error) => checkup.error("integrity", &error.into()),
    }
    let (mut listed, mut unreadable) = (Vec::new(), Vec::new());
    let mut query = RunQuery { limit: PAGE_ITEMS_MAX, ..RunQuery::default() };
    loop {
        let page = match store.runs(&query).await {
            Ok(page) => page,
            Err(error) => {
                checkup.error("runs", &error.into());
                return None;
            }
        };
        listed.extend(page.runs);
        unreadable.extend(page.damaged);
        match page.next {
            Some(cursor) => query.cursor = Some(cursor),
            None => break,
        }
    }
    listed.iter_mut().for_each(|run| keepalive::report_commands(store, run));
    let runs = Runs { listed, unreadable };
    readable(store, &runs, checkup).await;
    Some(runs)
}

/// Reads the newest records of the runs; a summary can be sound while these are damaged.
async fn readable(store: &dyn Store, runs: &Runs, checkup: &mut Checkup) {
    const NAME: &str = "runs";
    let mut broken: Vec<(RunId, String)> = Vec::new();
    let mut newer: Vec<RunId> = Vec::new();
    let mut add_unreadable = |run: &RunId, error: &StoreError| match error {
        StoreError::Version { .. } => newer.push(run.clone()),
        error => broken.push((run.clone(), error.to_string())),
    };
    for run in &runs.unreadable {
        match run_status::unlisted(store, &run.run).await {
            Err(Error::Store(error)) => add_unreadable(&run.run, &error),
            _ => add_unreadable(&run.run, &StoreError::Invalid(run.why.clone())),
        }
    }
    let mut damaged: Vec<&RunId> = Vec::new();
    let read = runs.listed.iter().take(RUNS_READ_MAX);
    for run in read {
        match run_status::correct(store, &mut run.clone()).await {
            Ok(Correction::Unneeded) => {}
            Ok(Correction::Applied) => damaged.push(&run.run),
            Ok(Correction::Unreadable(error)) => add_unreadable(&run.run, &error),
            Err(error) => return checkup.error(NAME, &error),
        }
    }
    let is_sound = broken.is_empty() && damaged.is_empty();
    if let Some((first, why)) = broken.first() {
        let message = format!("{} cannot be read: {why}", named(broken.iter().map(|(run, _)| run)));
        let hint = format!("`waypost verify {first}` lists the sound checkpoints");
        checkup.fail(NAME, Exit::Damaged, message, Some(hint));
    }
    if let Some(first) = damaged.first() {
        let message =
            format!("newer checkpoints of {} are damaged or missing", named(damaged.iter().copied()));
        let hint = format!("`waypost verify {first}` lists them, and says whether a resume is possible");
        checkup.fail(NAME, Exit::Damaged, message, Some(hint));
    }
    if !newer.is_empty() {
        let message = format!("{} can only be read by a newer version", named(newer.iter()));
        checkup.warn(NAME, message, "use the version of waypost that wrote the run");
    }
    let count = runs.listed.len();
    let resumable = runs.listed.iter().filter(|run| run.status.is_resumable()).count();
    match count > RUNS_READ_MAX {
        _ if !is_sound => {}
        false => checkup.ok(NAME, format!("{count} readable, {resumable} resumable")),
        true => checkup.ok(
            NAME,
            format!("{count}, {resumable} of them resumable; only the newest {RUNS_READ_MAX} were read"),
        ),
    }
}

/// Reports the holders of runs, and whether their processes exist.
fn locks(runs: &Runs, checkup: &mut Checkup) {
    const NAME: &str = "locks";
    let held: Vec<(&RunId, &Holder)> =
        runs.listed.iter().filter_map(|run| Some((&run.run, run.holder.as_ref()?))).collect();
    if held.is_empty() {
        return checkup.ok(NAME, "no run is held");
    }
    for (run, holder) in held {
        let message = format!("run {run} is held by {holder}");
        if holder.is_gone() {
            let hint = format!(
                "the process is dead, and its supervisor still ends the remaining processes: wait a \
                 moment, then `waypost resume {run}`"
            );
            checkup.warn(NAME, format!("{message}, which is dead"), hint);
        } else if !holder.is_of_here() {
            let hint = "the process is on another machine or in another container: make sure that only one \
                        machine writes to this store";
            checkup.warn(NAME, format!("{message}, on another host"), hint);
        } else {
            checkup.ok(NAME, message);
        }
    }
}

/// Reports remaining processes of runs without a holder.
fn processes(store: &dyn Store, runs: &Runs, checkup: &mut Checkup) {
    const NAME: &str = "processes";
    let unheld = runs.listed.iter().filter(|run| run.holder.is_none()).map(|run| run.run.clone());
    let unheld: Vec<RunId> = unheld.collect();
    match processes_of(store, &unheld) {
        Ok(found) if found.is_empty() => checkup.ok(NAME, "no processes left by runs"),
        Ok(found) => {
            for (run, pids) in found {
                let pids = pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
                let message = format!("run {run} left processes without a supervisor: {pids}");
                let hint = format!(
                    "`waypost resume {run}` ends the processes and resumes the run; `waypost cancel {run}` \
                     ends the processes and cancels the run"
                );
                checkup.warn(NAME, message, hint);
            }
        }
        Err(error) => {
            checkup.warn(NAME, format!("cannot list the processes of this machine: {error}"), "mount `/proc`")
        }
    }
}

fn clock(context: &Context, runs: &Runs, checkup: &mut Checkup) {
    let now = context.now();
    let newest = runs.listed.iter().max_by_key(|run| run.updated_at);
    let Some(newest) = newest else { return checkup.ok("clock", format!("it is {}", time::utc(now))) };
    let ahead = Duration::try_from(newest.updated_at.duration_since(now)).unwrap_or_default();
    if ahead > AHEAD_MAX {
        let at = time::utc(newest.updated_at);
        let message =
            format!("run {} changed at {at}, {} ahead of the clock", newest.run, time::lasted(ahead));
        let hint = "the clock was set back, or the clock of another machine is wrong: the order of records \
                    is safe, but `sleep` steps follow this clock";
        checkup.warn("clock", message, hint);
    } else {
        checkup.ok("clock", format!("the clock says {}, later than every record", time::utc(now)));
    }
}

fn named<'r>(runs: impl Iterator<Item = &'r RunId>) -> String {
    let names: BTreeSet<&str> = runs.map(RunId::as_str).collect();
    let first = names.iter().take(NAMED_MAX).copied().collect::<Vec<_>>().join(", ");
    match names.len() {
        1 => format!("run {first}"),
        count if count > NAMED_MAX => format!("runs {first} and {} others", count - NAMED_MAX),
        _ => format!("runs {first}"),
    }
}

fn report_text(context: &Context, view: &DoctorView) -> String {
    let paint = context.output.paint;
    let mut text = String::new();
    for check in &view.checks {
        let result = format!("{:<4}", check.result);
        let result = match check.result {
            "ok" => paint.green(&result),
            "warn" => paint.yellow(&result),
            _ => paint.red(&result),
        };
        let message = crate::output::shown_lines(&check.message).replace('\n', " ");
        let message = context.output.wrapped(&message, 21, 21);
        text.push_str(&format!("{result}  {:<13}  {message}\n", check.check));
        if let Some(hint) = &check.hint {
            let hint = crate::output::shown_lines(hint);
            text.push_str(&format!("{:21}{} {hint}\n", "", paint.cyan("hint:")));
        }
    }
    let of = |result: &str| view.checks.iter().filter(|check| check.result == result).count();
    let sentence = match (of("fail"), of("warn")) {
        (0, 0) => "No problems found.".to_owned(),
        (0, warnings) => format!("No failures; warnings: {warnings}."),
        (failures, 0) => format!("{failures} failed."),
        (failures, warnings) => format!("Failures: {failures}; warnings: {warnings}."),
    };
    format!("{text}{sentence}")
}
