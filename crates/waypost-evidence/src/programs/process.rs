//! `process_exists`: running processes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use serde_json::{Value, json};
use waypost::evidence::{Cost, Finding, Probe, ProbeKind, Site, modified, read_file};
use waypost::record::Claim;

use crate::check_count;
use crate::expectations::expected::{Expected, holds};

/// Recorded kind of claims about processes.
pub const PROCESS_EXISTS: &str = "process_exists";
/// Known expectations; `started` comes from a pin.
const KEYS: [&str; 5] = ["pid_file", "user", "started", "args", "count"];
/// Largest pid file: a line, and the extra lines that some programs write.
const PID_FILE_BYTES_MAX: usize = 4 << 10;
/// Most process ids in a finding.
const SHOWN_MAX: usize = 5;
/// Tolerance between pid file and process start: the boot time is rounded to seconds.
const LATER_SECONDS_MAX: i64 = 2;

/// Checks `process_exists`: a process with the subject as program name or process id exists.
///
/// The program name is the name of `ps -o comm` or the first word of the command line. Expectations:
///
/// - `pid_file`: a file below the base folder that contains the process id.
/// - `args`: the other words of the command line, joined by blanks.
/// - `user`: the owner, by name or number.
/// - `count`: the number of processes; at least 1 by default.
///
/// A zombie does not count as running. A process id without expectations is pinned with the start time,
/// because the id can be reused. A process that started after its pid file was written does not match.
///
/// - `ok`: a process, or the expected number of processes, matches.
/// - `failed`: no process matches, or the number differs. A missing or malformed pid file fails the opposite
///   too.
/// - `unknown`: processes may be hidden by `hidepid` or missing permissions, or the system is not Linux.
#[derive(Debug, Clone)]
pub struct ProcessProbe {
    proc: PathBuf,
}

impl Default for ProcessProbe {
    fn default() -> Self {
        Self::at("/proc")
    }
}

impl ProcessProbe {
    /// Returns a probe that reads processes from `proc` instead of `/proc`, for a machine that mounts procfs
    /// elsewhere.
    pub fn at(proc: impl Into<PathBuf>) -> Self {
        Self { proc: proc.into() }
    }
}

#[async_trait]
impl Probe for ProcessProbe {
    fn kind(&self) -> ProbeKind {
        ProbeKind::new(PROCESS_EXISTS, Cost::Asking).local().live()
    }

    async fn check(&self, claim: &Claim, site: &Site) -> Result<Finding, Finding> {
        let mut wanted = ProcessExpectation::read(claim)?;
        if let Some(file) = &wanted.pid_file {
            let bytes = read_file(site, file, PID_FILE_BYTES_MAX).await.map_err(Finding::either_way)?;
            let text = String::from_utf8_lossy(&bytes);
            let number = text.split_whitespace().next().and_then(|word| word.parse().ok());
            let no_number = || Finding::failed(format!("`{file}` contains no process id"));
            wanted.pid = Some(number.filter(|pid| *pid > 0).ok_or_else(no_number)?);
            wanted.written = Some(modified(site, file).await?.as_second());
        }
        let proc = self.proc.clone();
        blocking(move || wanted.find(&proc)).await
    }

    async fn pin(&self, claim: &Claim, _: &Site) -> Result<Finding, Finding> {
        let Ok(pid) = claim.subject.parse() else {
            return Err(Finding::failed("`process` evidence needs an expected state, and cannot be pinned"));
        };
        let proc = self.proc.clone();
        blocking(move || {
            let seen = read_process(&proc, pid)?.ok_or_else(|| Finding::absent("no such process"))?;
            Ok(Finding::ok(json!({ "started": seen.identity(&proc)? })))
        })
        .await
    }
}

/// The parsed expectation of a claim.
#[derive(Debug)]
struct ProcessExpectation {
    /// `None` if the process id selects the process.
    name: Option<String>,
    pid: Option<u32>,
    pid_file: Option<String>,
    /// Modification time of the pid file.
    written: Option<i64>,
    args: Option<Value>,
    user: Option<String>,
    count: Option<Value>,
    started: Option<String>,
}

impl ProcessExpectation {
    fn read(claim: &Claim) -> Result<Self, Finding> {
        let subject = claim.subject.trim();
        if subject.is_empty() || subject.contains(['/', '\0']) {
            return Err(Finding::failed(format!("`{subject}` is neither a program name nor a process id")));
        }
        let pid = subject.parse().ok().filter(|pid| *pid > 0);
        let name = pid.is_none().then(|| subject.to_owned());
        let expect = Expected::read(&claim.expect, "a process", &KEYS)?;
        let none = |name: &str| Finding::failed(format!("`{name}` has no comparable value"));
        let text = |name: &str| match expect.get(name) {
            None => Ok(None),
            Some(Value::String(text)) if !text.is_empty() => Ok(Some(text.clone())),
            Some(Value::Number(id)) if name == "user" && id.is_u64() => Ok(Some(id.to_string())),
            Some(_) => Err(none(name)),
        };
        if let Some(name) = ["args", "count"].into_iter().find(|name| expect.get(name) == Some(&Value::Null))
        {
            return Err(none(name));
        }
        let wanted = Self {
            name,
            pid,
            pid_file: text("pid_file")?,
            written: None,
            args: expect.value("args")?.cloned(),
            user: text("user")?,
            count: expect.checked("count", check_count)?.cloned(),
            started: text("started")?,
        };
        if wanted.pid.is_some() && wanted.pid_file.is_some() {
            return Err(Finding::failed("`pid_file` conflicts with a process id"));
        }
        Ok(wanted)
    }

    /// Finds the matching processes and returns the finding.
    fn find(&self, proc: &Path) -> Result<Finding, Finding> {
        let user = self.user.as_deref().map(|user| number_of(user, Path::new("/etc/passwd"))).transpose()?;
        let mut pids = match self.pid {
            Some(pid) => vec![pid],
            None => all(proc)?,
        };
        pids.sort_unstable();
        let (mut found, mut hidden) = (Vec::new(), is_hiding(proc, user));
        for pid in pids {
            match read_process(proc, pid) {
                Ok(Some(seen)) if self.is_it(&seen, user, proc)? => found.push(pid),
                Ok(_) => {}
                Err(_) => hidden = true,
            }
        }
        let count = json!(found.len());
        let is_met = match &self.count {
            Some(expect) => holds("count", expect, &count)?,
            None => !found.is_empty(),
        };
        // A hidden process could match, or exceed the count.
        if hidden && (self.count.is_some() || found.is_empty()) {
            return Err(Finding::unknown("some processes are hidden from this user"));
        }
        found.truncate(SHOWN_MAX);
        let found = json!({ "count": count, "pids": found });
        Ok(Finding::compared(is_met, found))
    }

    fn is_it(&self, seen: &ProcessEntry, user: Option<u32>, proc: &Path) -> Result<bool, Finding> {
        let mut words = seen.words.iter().map(String::as_str);
        let program = words.next().unwrap_or_default().rsplit('/').next().unwrap_or_default();
        let is_named = self.name.as_deref().is_none_or(|name| seen.name == name || program == name);
        if !is_named || user.is_some_and(|user| user != seen.user) {
            return Ok(false);
        }
        if let Some(expect) = &self.args {
            let args = words.collect::<Vec<_>>().join(" ");
            if !holds("args", expect, &json!(args))? {
                return Ok(false);
            }
        }
        if let Some(started) = &self.started {
            return Ok(*started == seen.identity(proc)?);
        }
        match self.written {
            Some(written) => Ok(seen.started(proc)? <= written + LATER_SECONDS_MAX),
            None => Ok(true),
        }
    }
}

/// A live process.
#[derive(Debug)]
struct ProcessEntry {
    name: String,
    words: Vec<String>,
    user: u32,
    /// Start time, in ticks since boot.
    ticks: u64,
}

impl ProcessEntry {
    /// Returns a unique identity of the process: start time and boot id.
    fn identity(&self, proc: &Path) -> Result<String, Finding> {
        let boot = read_text(&proc.join("sys/kernel/random/boot_id"))?;
        Ok(format!("{} of boot {}", self.ticks, boot.trim()))
    }

    /// Returns the start time in seconds since 1970.
    fn started(&self, proc: &Path) -> Result<i64, Finding> {
        let text = read_text(&proc.join("stat"))?;
        let boot = text.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse::<i64>().ok());
        let boot = boot.ok_or_else(|| Finding::unknown("the boot time of this machine is unknown"))?;
        let seconds = self.ticks / rustix::param::clock_ticks_per_second();
        Ok(boot + i64::try_from(seconds).unwrap_or(i64::MAX / 2))
    }
}

/// Reads a process; returns `None` if the process does not exist or has ended.
fn read_process(proc: &Path, pid: u32) -> Result<Option<ProcessEntry>, Finding> {
    let folder = proc.join(pid.to_string());
    let read = |name: &str| match fs::read(folder.join(name)) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(Finding::unknown(format!("cannot read process {pid}: {error}"))),
    };
    let (Some(stat), Some(status), Some(words)) = (read("stat")?, read("status")?, read("cmdline")?) else {
        return Ok(None);
    };
    let unclear = || Finding::unknown(format!("cannot decode the status of process {pid}"));
    // The name may contain brackets and blanks.
    let (name, rest) =
        stat.split_once('(').and_then(|(_, rest)| rest.rsplit_once(')')).ok_or_else(unclear)?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    if matches!(fields.first(), Some(&("Z" | "X" | "x"))) {
        return Ok(None);
    }
    // proc_pid_stat(5): the start time is field 22, and the first field here is 3.
    let ticks = fields.get(19).and_then(|ticks| ticks.parse().ok()).ok_or_else(unclear)?;
    let user = user_in(&status).ok_or_else(unclear)?;
    let words = words.split_terminator('\0').map(str::to_owned).collect();
    Ok(Some(ProcessEntry { name: name.to_owned(), words, user, ticks }))
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

/// Parses the effective user from `/proc/PID/status`.
fn user_in(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Lists all visible processes.
fn all(proc: &Path) -> Result<Vec<u32>, Finding> {
    let unknown = |error: io::Error| Finding::unknown(format!("cannot list processes: {error}"));
    let mut pids = Vec::new();
    for entry in fs::read_dir(proc).map_err(unknown)? {
        pids.extend(entry.map_err(unknown)?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    Ok(pids)
}

/// Returns whether relevant processes of other users may be hidden. The superuser sees all processes, and
/// every user sees their own.
fn is_hiding(proc: &Path, wanted: Option<u32>) -> bool {
    let own = fs::read_to_string(proc.join("self/status")).ok().and_then(|status| user_in(&status));
    if own == Some(0) || (own.is_some() && own == wanted) {
        return false;
    }
    let Ok(mounts) = fs::read_to_string(proc.join("self/mountinfo")) else { return true };
    // proc(5): `hidepid=0` and `hidepid=off` hide nothing and are not listed.
    mounts.lines().any(|line| line.contains(" - proc ") && line.contains("hidepid="))
}

/// Returns the numeric id of a user.
fn number_of(user: &str, passwd: &Path) -> Result<u32, Finding> {
    if let Ok(number) = user.parse() {
        return Ok(number);
    }
    let text = read_text(passwd)?;
    let number = text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == user).then(|| fields.nth(1)?.parse().ok())?
    });
    // Users of a directory service are not looked up.
    number.ok_or_else(|| Finding::unknown(format!("user `{user}` is not in {}", passwd.display())))
}

fn read_text(path: &Path) -> Result<String, Finding> {
    fs::read_to_string(path)
        .map_err(|error| Finding::unknown(format!("cannot read {}: {error}", path.display())))
}

/// Runs a lookup on a blocking thread: a long process list takes a while.
async fn blocking(
    read_process: impl FnOnce() -> Result<Finding, Finding> + Send + 'static,
) -> Result<Finding, Finding> {
    if cfg!(not(target_os = "linux")) {
        return Err(Finding::unknown("process evidence is supported on Linux only"));
    }
    let looked_up = tokio::task::spawn_blocking(read_process).await;
    looked_up.unwrap_or_else(|_| Err(Finding::unknown("the check was interrupted")))
}
