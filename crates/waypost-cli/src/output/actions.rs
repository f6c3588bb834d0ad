//! What GitHub Actions understands in the log of a job: groups, annotations, and the summary of the job.
//!
//! Commands are lines that begin with `::`. What a step printed is shown behind a mark, so that none of its lines is
//! taken for one. Everything here was masked before it was recorded.

use std::fs::OpenOptions;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use waypost::record::{Header, Phase};
use waypost_workflow::program::log_name;

use super::{shown, shown_lines};
use crate::place;

/// Most of a report that goes into the summary of a job: GitHub takes 1 MiB for each of its steps, and all of it or
/// nothing.
const SUMMARY_BYTES_MAX: usize = 1_000_000;

/// Most lines of a log in a group, and most bytes: what a person scrolls through, and a browser shows at once.
const GROUP_LINES_MAX: usize = 1_000;
const GROUP_BYTES_MAX: u64 = 256 * 1024;

/// How bad something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    /// The run went on.
    Warning,
    /// It did not.
    Error,
}

/// Says whether this is a job of GitHub Actions.
pub(super) fn is_job() -> bool {
    std::env::var_os("GITHUB_ACTIONS").is_some_and(|value| value == "true")
}

/// Makes an annotation, at a place in a file where there is one.
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

/// Makes a group of what a step printed, from its log in the folder of its run, or else of what its record has of that;
/// none if it printed nothing, or the record is about no end of a step.
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
    let log = log.map(|(step, folder)| folder.join(log_name(&header.branch, step, &header.at)));
    let text = log.and_then(|log| end_of(&log).ok()).unwrap_or_else(|| printed.tail.clone());
    let lines = text.lines().map(|line| format!("  | {}\n", harmless(&shown(line))));
    let title = format!("{step}{said} (took {took})");
    Some(format!("::group::{}\n{}::endgroup::", data(&title), lines.collect::<String>()))
}

/// Reads the end of a log, as much as a group holds; the first line says what is left out, and where that is.
fn end_of(log: &Path) -> io::Result<String> {
    let mut file = place::open_regular(log)?;
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
        left_out => format!("… {left_out} bytes before this are in {}\n{text}", log.display()),
    })
}

/// Makes a line behind a mark one that is no command: GitHub still reads an older form of them anywhere in a line.
pub(crate) fn harmless(line: &str) -> String {
    line.replace("##[", "## [")
}

/// Appends the report of a run to the summary of the job.
pub(crate) fn summarise(report: &Path) -> io::Result<()> {
    let Some(summary) = std::env::var_os("GITHUB_STEP_SUMMARY").filter(|path| !path.is_empty()) else {
        return Ok(());
    };
    let mut text = io::read_to_string(place::open_regular(report)?)?;
    if text.len() > SUMMARY_BYTES_MAX {
        let end = (0..=SUMMARY_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
        text.truncate(end);
        text.push_str("\n\n… the rest of the report is in the run's folder.\n");
    }
    OpenOptions::new().append(true).create(true).open(summary)?.write_all(text.as_bytes())
}

/// Names a file as the repository of the job does, where it is in there.
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
