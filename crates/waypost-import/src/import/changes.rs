//! Steps that query git: the commit before a step, the required commit of a step, and the changes in between.
//!
//! Prodigy keeps the commit before each step in memory. Here a step prints this commit as an output, so the
//! checkpoint holds the commit: a crash between the commit and the end of the step loses neither.

use waypost_workflow::file::Node;

use super::context::Import;
use crate::variables::names::{Format, quoted};
use crate::yaml::document::{Item, Map, Value};

/// Variables of Prodigy for lists of changes: the name, and the command that prints the changes since `$BEFORE`,
/// a path or commit per line.
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
pub(crate) struct Head {
    /// The id of the step.
    pub(crate) id: String,
}

/// The base commits of change lists, and the steps that print the lists.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// The commit before the first step of the file, if something reads `${workflow.…}`.
    pub(crate) workflow: Option<Head>,
    /// The commit before the previous step, if the current step reads `${step.NAME}`.
    pub(crate) step: Option<Head>,
    /// The commit before the current step, if the next step reads `${step.NAME}`.
    pub(crate) before: Option<Head>,
    /// Steps to insert before the current step.
    pub(crate) pending: Vec<Item>,
    /// The pending steps by command and commit.
    known: Vec<(String, String)>,
}

impl Changes {
    /// Takes the steps to insert before the current step. The next step lists its changes again.
    pub(crate) fn take_pending(&mut self) -> Vec<Item> {
        self.known.clear();
        std::mem::take(&mut self.pending)
    }
}

/// Returns true if a text in this value reads changes of a step (`step`) or of the whole run (`workflow`).
pub(crate) fn reads_changes(node: &Node, whose: &str) -> bool {
    let text = node.to_json().to_string();
    CHANGES.iter().any(|(name, _)| text.contains(&format!("${{{whose}.{name}")))
}

impl Import<'_> {
    /// Returns a step that prints the current commit, to insert before the step `of`.
    pub(crate) fn head(&mut self, of: &str, dir: Option<&str>) -> (Item, Head) {
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

    /// Returns the value of a variable for a list of changes, and inserts a step that prints the list before the
    /// current step.
    pub(crate) fn changes(&mut self, inner: &str) -> Option<(String, Format)> {
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
pub(crate) fn committed(head: &Head, dir: Option<&str>) -> Value {
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
