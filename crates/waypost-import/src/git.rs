//! Steps that ask git: the commit before a step, the commit that a step must make, and the changes since then.
//!
//! Prodigy remembers the commit before each step in memory. Here a step prints it, so that it is an output in the
//! checkpoint: a crash between the commit and the end of the step loses neither.

use waypost_workflow::file::Node;

use super::import::Import;
use super::names::{Format, quoted};
use super::write::{Item, Map, Value};

/// Variables of Prodigy that list changes: the name, and the command that prints them since `$BEFORE`, one a line.
const CHANGES: [(&str, &str); 8] = [
    (
        "files_added",
        "{ git diff --name-only --diff-filter=A \"$BEFORE\" PATHS; git ls-files -o --exclude-standard PATHS; }",
    ),
    ("files_modified", "git diff --name-only --diff-filter=M \"$BEFORE\" PATHS"),
    ("files_deleted", "git diff --name-only --diff-filter=D \"$BEFORE\" PATHS"),
    (
        "files_changed",
        "{ git diff --name-only \"$BEFORE\" PATHS; git ls-files -o --exclude-standard PATHS; }",
    ),
    ("commits", "git rev-list \"$BEFORE..HEAD\" PATHS"),
    ("commit_count", "git rev-list --count \"$BEFORE..HEAD\" PATHS"),
    ("insertions", "git diff --numstat \"$BEFORE\" PATHS | awk '{ n += $1 } END { print n + 0 }'"),
    ("deletions", "git diff --numstat \"$BEFORE\" PATHS | awk '{ n += $2 } END { print n + 0 }'"),
];

/// A step that prints the current commit.
#[derive(Debug, Clone)]
pub(super) struct Head {
    /// The id of that step.
    pub(super) id: String,
}

/// The commits that changes are counted from, and the steps that list them.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// The commit before the first step of the file, if something reads `${workflow.…}`.
    pub(super) workflow: Option<Head>,
    /// The commit before the step before the current one, if the current one reads `${step.…}`.
    pub(super) step: Option<Head>,
    /// The commit before the current step, if the next one reads `${step.…}`.
    pub(super) before: Option<Head>,
    /// Steps to put before the current one.
    pub(super) pending: Vec<Item>,
    /// The steps among them, by command and commit.
    known: Vec<(String, String)>,
}

impl Changes {
    /// Takes the steps to put before the current one; the next one lists its changes again.
    pub(super) fn take_pending(&mut self) -> Vec<Item> {
        self.known.clear();
        std::mem::take(&mut self.pending)
    }
}

/// Says whether a text of this value reads changes, of a step (`step`) or of the whole run (`workflow`).
pub(super) fn reads_changes(node: &Node, whose: &str) -> bool {
    let text = node.to_json().to_string();
    CHANGES.iter().any(|(name, _)| text.contains(&format!("${{{whose}.{name}")))
}

/// Says whether a command speaks of git.
pub(super) fn is_git(command: &str) -> bool {
    command.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).any(|word| word == "git")
}

impl Import<'_> {
    /// Makes a step that prints the current commit, to stand before the step with the id `of`.
    pub(super) fn head(&mut self, of: &str, dir: Option<&str>) -> (Item, Head) {
        let id = self.ids.take(&format!("{of}-head"), 0);
        let mut map = Map::default();
        map.text("id", id.clone());
        map.text("run", "git rev-parse HEAD");
        if let Some(dir) = dir {
            map.text("dir", dir);
        }
        map.raw("capture", "text");
        (Item { comments: Vec::new(), map }, Head { id })
    }

    /// Returns the value of a variable that lists changes, and has a step make the list before the current one.
    pub(super) fn changes(&mut self, inner: &str) -> Option<(String, Format)> {
        let (name, format) =
            inner.split_once(':').map_or((inner, ""), |(name, format)| (name.trim(), format.trim()));
        let (whose, field) = name.split_once('.')?;
        let head = match whose {
            "step" => self.changes.step.clone()?,
            "workflow" => self.changes.workflow.clone()?,
            _ => return None,
        };
        let (_, command) = CHANGES.iter().find(|(known, _)| *known == field)?;
        let join = match format {
            "" | "space" => "join(' ')",
            "json" => "tojson",
            "lines" | "newline" => "join('\\n')",
            "csv" | "comma" => "join(',')",
            glob if glob.contains('*') => "join(' ')",
            _ => return None,
        };
        let paths = match format.contains('*') {
            true => {
                let glob = if format.contains('/') { format.to_owned() } else { format!("**/{format}") };
                format!(" -- {}", quoted(&format!(":(glob){glob}")))
            }
            false => String::new(),
        };
        let command = command.replace(" PATHS", &paths);
        let id = self.listing_step(field, &head, command);
        let value = format!("steps.{id}.outputs.result");
        match field {
            "commit_count" | "insertions" | "deletions" => Some((format!("{value}[0]"), Format::Text)),
            _ => Some((format!("{value} | {join}"), Format::Text)),
        }
    }

    fn listing_step(&mut self, field: &str, head: &Head, command: String) -> String {
        let key = format!("{}\n{command}", head.id);
        if let Some((_, id)) = self.changes.known.iter().find(|(known, _)| *known == key) {
            return id.clone();
        }
        let id = self.ids.take(&field.replace('_', "-"), 0);
        let mut map = Map::default();
        map.text("id", id.clone());
        map.text("run", command);
        map.texts("env", &[("BEFORE".to_owned(), format!("${{{{ steps.{}.outputs.result }}}}", head.id))]);
        map.raw("capture", "lines");
        self.changes.pending.push(Item { comments: Vec::new(), map });
        self.changes.known.push((key, id.clone()));
        id
    }
}

/// Writes the evidence that a commit was made since `head`; `dir` is the folder of the step.
pub(super) fn committed(head: &Head, dir: Option<&str>) -> Value {
    let mut claim = Map::default();
    claim.text(
        "command",
        if dir.is_some() { "git -C \"$COMMIT_DIR\" rev-parse HEAD" } else { "git rev-parse HEAD" },
    );
    claim.text("stdout", format!("!= ${{{{ steps.{}.outputs.result }}}}", head.id));
    claim.raw("name", "a new commit");
    claim.raw("at", "commit");
    Value::List(vec![Item { comments: Vec::new(), map: claim }])
}
