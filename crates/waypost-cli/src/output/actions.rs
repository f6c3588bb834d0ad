//! GitHub Actions: groups, annotations, and the summary of a job.
//!
//! Commands are lines that begin with `::`. Text from steps is printed after a mark, so that a line is never
//! taken for a command. All text here was masked before it was recorded.

use std::fs::OpenOptions;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use waypost::record::{Header, Phase};
use waypost_workflow::program::log_name;

use super::{shown, shown_lines};

/// Most bytes of a report in a job's summary: GitHub accepts at most 1 MiB per step, and drops a larger
/// summary.
const SUMMARY_BYTES_MAX: usize = 1_000_000;

/// Most lines and bytes of a log in a group: readable for a person, and fast in a browser.
const GROUP_LINES_MAX: usize = 1_000;
const GROUP_BYTES_MAX: u64 = 256 * 1024;

/// Severity of an annotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    /// The run continued.
    Warning,
    /// The run stopped.
    Error,
}

/// Returns whether this is a job of GitHub Actions.
pub(super) fn is_job() -> bool {
    std::env::var_os("GITHUB_ACTIONS").is_some_and(|value| value == "true")
}

/// Returns an annotation, with a place in a file if known.
pub(crate) fn annotation(level: Level, place: Option<(&Path, usize)>, title: &str, text: &str) -> String {
    let level = match level {
        Level::Warning => "warning",
        Level::Error => "error",
    };
    let place = place
        .map(|(file, line)| format!("file={},line={line},", property(&in_repository(file))))
        .unwrap_or_default();
    format!("::{level} {place}title={}::{}", property(&shown(title)), data(&shown_lines(text)))
}

/// Returns the printed text of a step as a group, from the log in the run's folder, else from the record;
/// `None` without printed text, or if the record is not the end of a step.
pub(super) fn group((step, took): (&str, &str), header: &Header, folder: Option<&Path>) -> Option<String> {
    let (ending, said) = match &header.phase {
        Phase::Completed(ending) => (ending, String::new()),
        Phase::Failed(failure) => {
            let error = failure.error.first().map_or("", String::as_str);
            (&failure.ending, format!(" failed: {}", shown(error)))
        }
        _ => return None,
    };
    let printed = ending.log.as_ref()?;
    let log = header.step.as_ref().zip(folder);
    let log = log.map(|(step, folder)| folder.join(log_name(&header.scope, step, &header.at)));
    let text = log.and_then(|log| end_of(&log).ok()).unwrap_or_else(|| printed.tail.clone());
    let lines = text.lines().map(|line| format!("  | {}\n", harmless(&shown(line))));
    let title = format!("{step}{said} (took {took})");
    Some(format!("::group::{}\n{}::endgroup::", data(&title), lines.collect::<String>()))
}

/// Reads the end of a log, up to the size of a group; the first line names the omitted part and its file.
fn end_of(log: &Path) -> io::Result<String> {
    let mut file = crate::atomic_file::open_regular(log)?;
    let bytes = file.metadata()?.len();
    let start = bytes.saturating_sub(GROUP_BYTES_MAX);
    file.seek(SeekFrom::Start(start))?;
    let mut end = Vec::new();
    file.take(GROUP_BYTES_MAX).read_to_end(&mut end)?;
    let whole_lines =
        if start > 0 { end.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1) } else { 0 };
    let last = end.len() - usize::from(end.last() == Some(&b'\n'));
    let breaks = end[..last].iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    let first_line = breaks.map(|(at, _)| at + 1).nth(GROUP_LINES_MAX - 1).unwrap_or_default();
    let begin = whole_lines.max(first_line);
    let text = String::from_utf8_lossy(&end[begin..]);
    Ok(match start + begin as u64 {
        0 => text.into_owned(),
        left_out => format!("… {left_out} earlier bytes are in {}\n{text}", log.display()),
    })
}

/// Neutralizes the older command syntax, which GitHub accepts anywhere in a line.
pub(crate) fn harmless(line: &str) -> String {
    line.replace("##[", "## [")
}

/// Appends the report of a run to the summary of the job.
pub(crate) fn summarise(report: &Path) -> io::Result<()> {
    let Some(summary) = std::env::var_os("GITHUB_STEP_SUMMARY").filter(|path| !path.is_empty()) else {
        return Ok(());
    };
    let mut text = io::read_to_string(crate::atomic_file::open_regular(report)?)?;
    if text.len() > SUMMARY_BYTES_MAX {
        let end = (0..=SUMMARY_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
        text.truncate(end);
        text.push_str("\n\n… the rest of the report is in the folder of the run.\n");
    }
    OpenOptions::new().append(true).create(true).open(summary)?.write_all(text.as_bytes())
}

/// Returns the path of a file relative to the job's repository, if inside.
fn in_repository(file: &Path) -> String {
    let whole = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    let workspace = std::env::var_os("GITHUB_WORKSPACE").map(std::path::PathBuf::from);
    let workspace = workspace.and_then(|folder| folder.canonicalize().ok());
    let within = workspace.and_then(|folder| whole.strip_prefix(folder).ok().map(Path::to_owned));
    within.unwrap_or_else(|| file.to_owned()).to_string_lossy().into_owned()
}

fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{Level, annotation};

    #[test]
    fn nothing_leaves_its_place_in_an_annotation() {
        let place = Some((Path::new("/nonexistent/a,b:c.yaml"), 7));

        let text = annotation(Level::Error, place, "step x: 100%", "exit code 3\nline 2\r::error::no");

        assert_eq!(
            text,
            "::error file=/nonexistent/a%2Cb%3Ac.yaml,line=7,title=step x%3A 100%25::exit code 3%0Aline 2\\r::error::no"
        );
    }
}
