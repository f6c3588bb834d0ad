//! Events that a step adds to its run: one line of JSON per event in the file `$WAYPOST_EVENTS`.
//!
//! `waypost event` appends the lines, also from several processes at once. The file is read when the attempt
//! ends. A program may write the same lines without `waypost event`.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use waypost::events::{CHECKPOINT_FAILED, PRUNED, SERVICE_STARTED};
use waypost::record::Note;

use super::attempt::WORKER_LOST;
use crate::mask::Mask;

/// Environment variable with the path of the file.
pub const EVENTS: &str = "WAYPOST_EVENTS";
/// Largest events file of one attempt. The header of the record keeps the events, and has room for twice this
/// size.
pub const EVENTS_BYTES_MAX: u64 = 256 * 1024;
/// Most events of one attempt; anything more frequent belongs in the log.
pub const EVENTS_MAX: usize = 1_000;
/// Longest event name.
const NAME_BYTES_MAX: usize = 100;
/// Event names reserved for Waypost.
const OWN_NAMES: [&str; 6] =
    ["warning", "definition_adopted", WORKER_LOST, SERVICE_STARTED, CHECKPOINT_FAILED, PRUNED];

/// Why an event cannot be added. Nothing was added.
#[derive(Debug, thiserror::Error)]
pub enum EventError {
    /// The name is not valid.
    #[error(
        "`{0}` is not a valid event name: use a letter or `_`, followed by letters, digits, `_`, `-` or \
         `.`, at most {NAME_BYTES_MAX}"
    )]
    Name(String),
    /// The name is reserved for Waypost.
    #[error("`{0}` is a reserved event name; choose another name")]
    Own(String),
    /// The attempt has ended, and the events file is removed.
    #[error("the step of this process has ended, and accepts no more events")]
    Ended,
    /// The events of the attempt would exceed [`EVENTS_BYTES_MAX`].
    #[error("the event exceeds the limit of {EVENTS_BYTES_MAX} bytes for all events of the step")]
    Full,
    /// The file cannot be written.
    #[error("cannot add to the events of the step")]
    Io(#[source] io::Error),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EventLine {
    name: String,
    #[serde(default)]
    data: Map<String, Value>,
}

/// Appends an event to `file`, the events file of a running step.
///
/// # Errors
/// [`EventError`]: nothing was added.
pub fn add_event(file: &Path, name: &str, data: BTreeMap<String, String>) -> Result<(), EventError> {
    refuse_name(name)?;
    let data = data.into_iter().map(|(key, value)| (key, Value::String(value))).collect();
    let line = EventLine { name: name.to_owned(), data };
    let mut bytes = serde_json::to_vec(&line).map_err(|error| EventError::Io(error.into()))?;
    bytes.push(b'\n');
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).expect("flags of the system fit its own type");
    let opened = OpenOptions::new().append(true).custom_flags(flags).open(file);
    let mut file = opened.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => EventError::Ended,
        _ => EventError::Io(error),
    })?;
    let found = file.metadata().map_err(EventError::Io)?;
    if !found.is_file() {
        return Err(EventError::Io(io::Error::other("the path is not a regular file")));
    }
    if found.size() + bytes.len() as u64 > EVENTS_BYTES_MAX {
        return Err(EventError::Full);
    }
    // One write call: lines of concurrent writers do not mix.
    file.write_all(&bytes).map_err(EventError::Io)
}

fn refuse_name(name: &str) -> Result<(), EventError> {
    let sound = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name.chars().all(|letter| letter.is_ascii_alphanumeric() || "_-.".contains(letter))
        && name.len() <= NAME_BYTES_MAX;
    if !sound {
        return Err(EventError::Name(name.to_owned()));
    }
    match OWN_NAMES.contains(&name) {
        true => Err(EventError::Own(name.to_owned())),
        false => Ok(()),
    }
}

/// Turns the events file of a step into notes, with secrets masked. A line that cannot be kept becomes a
/// warning and never fails the step.
pub(super) fn notes(read: io::Result<Vec<u8>>, mask: &Mask) -> Vec<Note> {
    let warn = |text: String| Note::Warning(mask.mask_str(&text).into_owned());
    let bytes = match read {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => return vec![warn(format!("events are lost: {error}"))],
    };
    let mut notes = Vec::new();
    let text = String::from_utf8_lossy(&bytes);
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    for (count, (at, line)) in lines.enumerate() {
        if count == EVENTS_MAX {
            notes.push(warn(format!(
                "more than {EVENTS_MAX} events; events from line {} on are dropped",
                at + 1
            )));
            break;
        }
        notes.push(match event(line, mask) {
            Ok(note) => note,
            // The parse error is left out: the text could quote a secret.
            Err(why) => warn(format!("dropped line {} of $WAYPOST_EVENTS: {why}", at + 1)),
        });
    }
    notes
}

fn event(line: &str, mask: &Mask) -> Result<Note, String> {
    let EventLine { name, data } =
        serde_json::from_str(line).map_err(|_| "not an object with `name` and `data`".to_owned())?;
    let mut data = Value::Object(data);
    refuse_name(&name).map_err(|_| "missing or invalid event name".to_owned())?;
    mask_values(&mut data, mask);
    if mask.contains(name.as_bytes()) || mask.is_within(&data) {
        return Err("the name, a key or a number contains a secret".to_owned());
    }
    Ok(Note::Event { name, data })
}

/// Masks secrets in all texts of a value.
fn mask_values(value: &mut Value, mask: &Mask) {
    match value {
        Value::String(text) => *text = mask.mask_str(text).into_owned(),
        Value::Array(items) => items.iter_mut().for_each(|item| mask_values(item, mask)),
        Value::Object(map) => map.values_mut().for_each(|item| mask_values(item, mask)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io;

    use waypost::record::Note;

    use super::{EVENTS_BYTES_MAX, EVENTS_MAX, EventError, add_event, notes};
    use crate::mask::Mask;

    fn said(text: &str) -> Vec<String> {
        let mask = Mask::new([("S", b"hunter2-hunter2".as_slice()), ("N", b"12345678")])
            .expect("they are long enough");
        let notes = notes(Ok(text.as_bytes().to_vec()), &mask);
        let shown = |note: Note| match note {
            Note::Event { name, data } => format!("{name} {data}"),
            Note::Warning(text) => format!("warning: {text}"),
            Note::Report(text) => text,
        };
        notes.into_iter().map(shown).collect()
    }

    #[test]
    fn lines_become_events_and_what_is_none_a_warning() {
        let line = r#"{"name":"a","data":{"x":"1","deep":[{"y":"hunter2-hunter2!"}]}}"#;
        assert_eq!(said(line), [r#"a {"x":"1","deep":[{"y":"***!"}]}"#]);
        assert_eq!(said("{\"name\":\"a\"}\n\n{\"name\":\"b\"}"), ["a {}", "b {}"]);
        for wrong in [
            "x",
            "{}",
            "[]",
            r#"{"name":"a","more":1}"#,
            r#"{"name":"a b"}"#,
            r#"{"name":"warning"}"#,
            r#"{"name":"a""#,
        ] {
            assert!(said(wrong)[0].starts_with("warning: dropped line 1 of $WAYPOST_EVENTS"), "{wrong}");
        }
        for secret in [
            r#"{"name":"a","data":{"n":12345678}}"#,
            r#"{"name":"a","data":{"hunter2-hunter2":1}}"#,
            r#"{"name":"hunter2-hunter2"}"#,
            "hunter2-hunter2",
        ] {
            let said = said(secret).join("\n");
            assert!(
                said.starts_with("warning") && !said.contains("hunter2") && !said.contains("12345678"),
                "{said}"
            );
        }
        let many = said(&"{\"name\":\"a\"}\n".repeat(EVENTS_MAX + 2));
        assert_eq!(many.len(), EVENTS_MAX + 1);
        assert!(many[EVENTS_MAX].contains("events from line 1001 on are dropped"), "{}", many[EVENTS_MAX]);
        assert!(notes(Err(io::ErrorKind::NotFound.into()), &Mask::new([]).expect("none")).is_empty());
    }

    #[test]
    fn only_what_can_be_kept_is_added() {
        let folder = tempfile::tempdir().expect("there is room");
        let file = folder.path().join("events");
        let add = |name: &str, value: &str| {
            add_event(&file, name, BTreeMap::from([("k".to_owned(), value.to_owned())]))
        };

        assert!(matches!(add("a", "x"), Err(EventError::Ended)));
        std::fs::write(&file, "").expect("it can be made");
        add("a", "x\n\"y\"").expect("it is fine");
        add("b.c-d", "").expect("it is fine");
        assert_eq!(
            std::fs::read_to_string(&file).expect("it is there"),
            "{\"name\":\"a\",\"data\":{\"k\":\"x\\n\\\"y\\\"\"}}\n{\"name\":\"b.c-d\",\"data\":{\"k\":\"\"}}\n"
        );
        assert!(matches!(add("1a", ""), Err(EventError::Name(_))));
        assert!(matches!(add("", ""), Err(EventError::Name(_))));
        assert!(matches!(add("warning", ""), Err(EventError::Own(_))));
        let large = "x".repeat(usize::try_from(EVENTS_BYTES_MAX).expect("small"));
        assert!(matches!(add("a", &large), Err(EventError::Full)));
        assert!(matches!(add_event(folder.path(), "a", BTreeMap::new()), Err(EventError::Io(_))));
    }
}
