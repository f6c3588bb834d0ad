//! JSON Schema of the workflow file, for editors: made from the key tables of the reader.
//!
//! The schema describes the keys and types. Checks that need the reader, such as the existence of a step, are
//! left to `check`. The schema accepts every file that the reader accepts.

use serde_json::{Map, Value, json};
use waypost_evidence::{ENGINES, METHODS};

use super::budget::BUDGET;
use super::evidence::{
    COMMANDED, EVIDENCE, EXECUTED, EXIT, FILE, JSON, PORT, PROCESS, REPOSITORY, SHA256, SQLITE,
};
use super::fields::KeySet;
use super::foreach::{FOREACH, ITEMS};
use super::read::{DEFAULTS, PARALLEL_MAX, PARAM, WORKFLOW};
use super::remote::{CONTAINER, HTTP, POSTGRES};
use super::repeat::REPEAT;
use super::settings::{CHECKPOINTS, RETRY};
use super::step::{OUTPUT, STEP};
use super::work::APPROVE;

/// Key tables, with the names of their schemas.
static TABLES: [(&str, &KeySet); 26] = [
    ("workflow", &WORKFLOW),
    ("defaults", &DEFAULTS),
    ("param", &PARAM),
    ("checkpoints", &CHECKPOINTS),
    ("budget", &BUDGET),
    ("step", &STEP),
    ("retry", &RETRY),
    ("output", &OUTPUT),
    ("approve", &APPROVE),
    ("foreach", &FOREACH),
    ("items", &ITEMS),
    ("repeat", &REPEAT),
    ("pack", &EVIDENCE),
    ("file", &FILE),
    ("sha256", &SHA256),
    ("exit", &EXIT),
    ("port", &PORT),
    ("json", &JSON),
    ("sqlite", &SQLITE),
    ("command", &COMMANDED),
    ("exec", &EXECUTED),
    ("process", &PROCESS),
    ("git", &REPOSITORY),
    ("http", &HTTP),
    ("container", &CONTAINER),
    ("postgres", &POSTGRES),
];

/// Tables of the kinds of evidence.
const CLAIMS: [&str; 13] = [
    "file",
    "sha256",
    "exit",
    "port",
    "json",
    "sqlite",
    "command",
    "exec",
    "process",
    "git",
    "http",
    "container",
    "postgres",
];

/// Returns the JSON Schema of the workflow file.
#[must_use]
pub fn schema() -> Value {
    let mut defs: Map<String, Value> =
        TABLES.iter().map(|(name, set)| ((*name).to_owned(), table(name, set))).collect();
    let scalar = json!({ "type": ["string", "number", "boolean"] });
    let words = json!({ "type": "array", "items": { "type": "string" } });
    let code = json!({ "type": "integer", "minimum": 1, "maximum": 255 });
    let more = [
        ("scalar", scalar.clone()),
        (
            "duration",
            json!({
                "type": "string",
                "pattern": r"^\s*([0-9.]+\s*(d|h|m|s|ms)\s*)+$",
                "description": "A number with a unit: 500ms, 30s, 10m, 6h, 1d, 1h30m."
            }),
        ),
        ("words", json!({ "anyOf": [{ "type": "string" }, words] })),
        ("env", json!({ "type": "object", "additionalProperties": scalar })),
        (
            "shell",
            json!({
                "anyOf": [{ "enum": ["bash", "sh"] }, { "type": "array", "items": { "type": "string" }, "minItems": 1 }],
                "description": "bash, sh, or a program with its arguments: [python3, -c]."
            }),
        ),
        ("codes", json!({ "anyOf": [{ "type": "boolean" }, code, { "type": "array", "items": code }] })),
        ("steps", json!({ "type": "array", "items": reference("step"), "minItems": 1 })),
        ("claim", json!({ "anyOf": CLAIMS.map(reference) })),
        ("claims", json!({ "type": "array", "items": reference("claim"), "minItems": 1 })),
        ("evidence", json!({ "anyOf": [reference("claims"), reference("pack")] })),
        ("hooks", json!({ "type": "object", "additionalProperties": reference("steps") })),
    ];
    defs.extend(more.map(|(name, schema)| (name.to_owned(), schema)));
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Waypost workflow file",
        "description": "The steps of a durable run, and what holds for all of them.",
        "anyOf": [reference("workflow"), reference("steps")],
        "$defs": defs,
    })
}

fn table(name: &str, set: &KeySet) -> Value {
    let property = |key: &&str| ((*key).to_owned(), property(name, key).unwrap_or_else(|| json!({})));
    let properties: Map<String, Value> = set.keys.iter().map(property).collect();
    let own = json!({ "type": "object", "properties": properties, "additionalProperties": false });
    let required = match name {
        "workflow" => "steps",
        "foreach" => "items",
        "output" => "from",
        "approve" => "question",
        "pack" => "of",
        claim if CLAIMS.contains(&claim) => name,
        // A short form exists.
        "retry" => return json!({ "anyOf": [{ "type": "integer", "minimum": 0 }, own] }),
        _ => return own,
    };
    let Value::Object(mut own) = own else { return own };
    own.insert("required".to_owned(), json!([required]));
    let own = Value::Object(own);
    match name {
        "approve" => json!({ "anyOf": [{ "type": "string" }, own] }),
        _ => own,
    }
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/$defs/{name}") })
}

/// Returns the schema of a key of a table; `None` for an unknown key.
fn property(table: &str, key: &str) -> Option<Value> {
    let text = || json!({ "type": "string" });
    let scalar = || reference("scalar");
    let truth = || json!({ "type": "boolean" });
    let count = |minimum: u64| json!({ "type": "integer", "minimum": minimum });
    let words = |words: &[&str]| json!({ "enum": words });
    let condition = || json!({ "type": ["string", "boolean"] });
    let map_of = |name: &str| json!({ "type": "object", "additionalProperties": reference(name) });
    let (schema, description) = match (table, key) {
        ("workflow", "version") => (json!({ "const": 1 }), "The version of the language."),
        ("workflow", "params") => (map_of("param"), "What a run wants to be told."),
        ("workflow", "secrets") => {
            let file = json!({ "type": "object", "properties": { "file": { "type": "string" } }, "required": ["file"], "additionalProperties": false });
            let of_file = json!({ "type": "object", "additionalProperties": file });
            let items = json!({ "anyOf": [{ "type": "string" }, of_file] });
            let schema = json!({ "anyOf": [{ "type": "string" }, { "type": "array", "items": items }] });
            (schema, "Names of variables that come from the caller, or from files, and are never stored.")
        }
        ("workflow", "defaults") => (reference("defaults"), "For steps that do not say their own."),
        ("workflow", "max_parallel") => (
            json!({ "type": "integer", "minimum": 1, "maximum": PARALLEL_MAX }),
            "How many steps may run at once.",
        ),
        ("workflow", "timeout") => (reference("duration"), "How long the run may take."),
        ("workflow", "budget") => (reference("budget"), "What all its steps may use together."),
        ("workflow", "allow_paths") => {
            (reference("words"), "Folders by their absolute paths beneath which evidence may lie too.")
        }
        ("workflow", "labels") => (reference("env"), "Words and values for finding runs."),
        ("workflow", "checkpoints") => (reference("checkpoints"), "How the run is written down."),
        ("workflow", "fail_fast") => (
            json!({ "type": "boolean" }),
            "Whether one failure also stops the steps that do not need the failed one.",
        ),
        ("workflow", "max_cuts") => {
            (count(1), "Cuts in a row from which on a step starts only alone; after one more it fails.")
        }
        ("workflow", "on_failure") => (reference("steps"), "Steps that are done when the run has failed."),
        ("workflow", "store") => {
            (text(), "Where its runs are kept: sqlite:PATH or file:DIR, from the folder of the file.")
        }
        ("workflow", "steps") => (reference("steps"), "The steps."),
        ("workflow" | "step", "name") => (text(), "A name for whoever reads it."),
        ("workflow" | "param", "description") => (text(), "What it is for."),
        ("workflow" | "defaults" | "step", "env") => (reference("env"), "Variables."),
        ("defaults" | "step", "shell") => (reference("shell"), "What runs the command."),
        ("defaults" | "step", "timeout") => (reference("duration"), "How long one try may take."),
        ("defaults" | "step", "retry") => (reference("retry"), "Tries after the first."),
        ("defaults" | "step", "dir") => {
            (scalar(), "The folder; a relative one begins at that of the workflow file.")
        }
        ("param", "type") => (words(&["string", "number", "integer", "bool", "json"]), "Its type."),
        ("param", "default") => (json!({}), "The value if none is given."),
        ("param", "required") => (truth(), "Whether it must be given."),
        ("param", "pattern") => (text(), "A regular expression that a string must match."),
        ("checkpoints", "retention") => (count(2), "How many step boundaries keep their state."),
        ("checkpoints", "durability") => (words(&["sync", "async"]), "When a checkpoint counts as written."),
        ("checkpoints", "on_failure") => {
            (words(&["fail", "tolerate"]), "What a checkpoint that cannot be written does to the run.")
        }
        ("checkpoints", "interval") => {
            (reference("duration"), "How often a step that runs long writes a checkpoint.")
        }
        ("budget", "cost") => {
            (json!({ "type": "number", "exclusiveMinimum": 0 }), "In the currency in which steps say it.")
        }
        ("budget", "tokens") => (json!({ "type": ["integer", "string"] }), "How many: 50000, 200k, 2M."),
        ("retry", "max") => (count(0), "Tries after the first."),
        ("retry", "delay") => (reference("duration"), "The wait before the second try."),
        ("retry", "max_delay") => (reference("duration"), "The longest wait."),
        ("retry", "backoff") => (words(&["fixed", "linear", "exponential"]), "How the wait grows."),
        ("retry", "jitter") => (truth(), "Whether waits vary a little."),
        ("retry", "when") => {
            (reference("words"), "Which failures are tried again: timeout, exit N, signal, evidence, any.")
        }
        ("step", "id") => (
            json!({ "type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_-]*$", "maxLength": 64 }),
            "Its name for everything else.",
        ),
        ("step" | "items", "run") => (scalar(), "The command."),
        ("step", "agent") => {
            (text(), "The agent that does it: claude, codex, gemini, or one of the configuration.")
        }
        ("step", "prompt") => (scalar(), "What the agent is to do."),
        ("step", "service") => (scalar(), "A command that lives on beside the steps after it."),
        ("step", "approve") => (reference("approve"), "What a person is asked."),
        ("step", "sleep") => (reference("duration"), "How long it waits."),
        ("step", "wait") => (scalar(), "The signal that it waits for."),
        ("step", "foreach") => (reference("foreach"), "What it works on, item by item."),
        ("step", "workflow") => (text(), "Another file that it runs."),
        ("step", "params") => (json!({ "type": "object" }), "What that file is given."),
        ("step", "steps") => (reference("steps"), "The steps that are repeated."),
        ("step", "repeat") => (reference("repeat"), "Until when it is done again."),
        ("step", "on_failure") => (reference("steps"), "Steps that are done when it has failed."),
        ("step", "on_success") => (reference("steps"), "Steps that are done when it has completed."),
        ("step", "on_exit_code") => {
            (reference("hooks"), "Steps that are done after an exit code, by that code.")
        }
        ("step", "renamed_from") => {
            (text(), "The id of the step in the file so far: a resume keeps the result of the step.")
        }
        ("step", "needs") => (reference("words"), "The steps that must have ended before."),
        ("step", "if") => (condition(), "Whether it runs."),
        ("step", "outputs") => (map_of("output"), "What it gives to later steps, from files."),
        ("step", "capture") => {
            (words(&["text", "json", "lines", "number"]), "What standard output becomes as output `result`.")
        }
        ("step", "stdin") => (scalar(), "What it reads from standard input."),
        ("step", "continue_on_error") => {
            (reference("codes"), "Whether, or after which exit codes, the run goes on.")
        }
        ("step", "idempotent") => (truth(), "false if running it twice could do harm."),
        ("step", "max_cuts") => {
            (count(1), "Cuts in a row from which on it starts only alone; after one more it fails.")
        }
        ("step", "grace") => (reference("duration"), "How long it has to end after it was told to."),
        ("step", "evidence") => (reference("evidence"), "By what it is believed to be done."),
        ("pack", "at_least") => (count(1), "How many of the claims must hold."),
        ("pack", "any") => (json!({ "const": true }), "One of the claims must hold."),
        ("pack", "of") => (reference("claims"), "The claims."),
        ("file", "file") => (scalar(), "A path beneath the folder of the workflow, or a pattern: out/*.csv."),
        ("file", "type") => (words(&["file", "directory", "symlink", "any"]), "What it is."),
        ("file", "size") => (json!({}), "Its size: 12, \"> 0\", \">= 2 KiB\", or a list of which one fits."),
        ("file", "mode") => (reference("words"), "Its mode in octal digits: \"0644\"."),
        ("file", "json") => (json!({ "type": "object" }), "Values by their paths in it: { $.status: ok }."),
        ("file", "newer_than") => {
            (reference("words"), "Files and times than which it was written no earlier.")
        }
        ("file", "count") => (json!({}), "How many files a pattern names: 3, \"> 5\"."),
        ("file", "contains") => (reference("words"), "Texts that are all in it."),
        ("file", "matches") => (text(), "A regular expression that matches something in it."),
        ("file", "lines") => (json!({}), "How many lines it has: 3, \"> 5\"."),
        ("file", "absent") => (json!({ "const": true }), "It is not there."),
        ("port", "port") => (scalar(), "A port of this machine, or host:port."),
        ("port", "listening") => (truth(), "false if nothing may listen there."),
        ("json", "json") => (scalar(), "A JSON file."),
        ("json", "path") => (text(), "The place in it: $.meta.count."),
        ("json", "value") => (json!({}), "The value: 3, \"> 5\", \"~ regex\", or a list of which one fits."),
        ("sqlite", "sqlite") => (scalar(), "An SQLite database."),
        ("command", "command") => (scalar(), "A command for `sh -eu -c`, run again at each check."),
        ("command", "exit") => (json!({}), "Its exit code, 0 if not said: 3, \"> 0\", [0, 1]."),
        ("command", "stdout") => {
            (json!({}), "What it prints, but for white space around it: ok, \"> 5\", \"~ regex\".")
        }
        ("command", "stderr") => (json!({}), "What it prints to standard error."),
        ("command" | "exec", "env") => {
            (reference("words"), "Variables that it needs: secrets are given only by name.")
        }
        ("exec", "exec") => {
            (scalar(), "A program that says whether it holds: 0 yes, 1 no, 2 it cannot tell.")
        }
        ("exec", "with") => (json!({ "type": "object" }), "What it is told besides."),
        ("process", "process") => (scalar(), "The name of a program that runs, or the number of a process."),
        ("process", "pid_file") => (scalar(), "A file in which its number stands."),
        ("process", "args") => (json!({}), "Its arguments, with blanks between them: \"~ --port 8089\"."),
        ("process", "user") => (scalar(), "Whose it is, by name or number."),
        ("process", "count") => (json!({}), "How many there are; at least one if not said."),
        ("git", "git") => (scalar(), "The top folder of a repository; without more, its commit is pinned."),
        ("git", "head") => (scalar(), "The branch that is checked out, or at least 7 digits of the commit."),
        ("git", "clean") => (truth(), "Whether nothing is changed, staged or untracked."),
        ("sha256", "sha256") => {
            (scalar(), "A file, a folder or a pattern: what is there stays as it is when the step ends.")
        }
        ("postgres", "postgres") => {
            (scalar(), "A PostgreSQL database: a URL or `key=value` pairs without a password, or env:NAME.")
        }
        ("sqlite" | "postgres", "table") => (text(), "The table."),
        ("sqlite" | "postgres", "where") => {
            (json!({ "type": "object" }), "The columns by which rows are meant.")
        }
        ("sqlite" | "postgres", "values") => {
            (json!({ "type": "object" }), "What stands in other columns of such a row.")
        }
        ("sqlite" | "postgres", "count") => (json!({}), "How many such rows there are."),
        ("sqlite" | "postgres", "query") => (text(), "A query that only reads."),
        ("sqlite" | "postgres", "equals") => (json!({}), "The first value that it gives."),
        ("http", "http") => (scalar(), "The URL that is asked."),
        ("http", "status") => (json!({}), "The status of the answer; 2xx if not said."),
        ("http", "method") => (words(&METHODS), "How it is asked; GET if not said."),
        ("http", "headers") => (json!({ "type": "object" }), "What headers of the answer say."),
        ("http", "body") => (json!({}), "The body, without the end of its last line."),
        ("http", "json") => {
            (json!({ "type": "object" }), "Values in the body, by their places: $.status: ok.")
        }
        ("http", "contains") => (reference("words"), "Texts that are all in the body."),
        ("http", "private") => {
            (truth(), "true if its name may lead to an address that is not of the internet.")
        }
        ("container", "container") => (scalar(), "A container, by name or id."),
        ("container", "running") => (truth(), "false if it must be there and not run."),
        ("container", "healthy") => (truth(), "What its health check says."),
        ("container", "image") => {
            (json!({}), "The image that it was started from: nginx:1.27, \"~ ^nginx:\".")
        }
        ("container", "engine") => (words(&ENGINES), "Which engine has it; all that are there if not said."),
        ("sha256", "is") => (scalar(), "The SHA-256 that it must have."),
        ("sha256", "fast") => {
            (truth(), "Whether it is read again only when size, times or inodes have changed.")
        }
        ("exit", "exit") => (json!({}), "The exit code of the step, or a list of them; 0 if left empty."),
        (claim, "name") if CLAIMS.contains(&claim) => (text(), "A name for whoever reads it."),
        (claim, "not") if CLAIMS.contains(&claim) => (truth(), "It holds where that is not found."),
        (claim, "timeout") if CLAIMS.contains(&claim) => {
            (reference("duration"), "How long one check may take; 10s if not said.")
        }
        (claim, "within") if CLAIMS.contains(&claim) => {
            (reference("duration"), "How long it is looked at again until it holds.")
        }
        (claim, "at") if CLAIMS.contains(&claim) => {
            (reference("words"), "When it is checked: commit, resume, verify.")
        }
        (claim, "severity") if CLAIMS.contains(&claim) => {
            (words(&["fail", "warn"]), "Whether the step fails with it.")
        }
        (claim, "sensitive") if CLAIMS.contains(&claim) => {
            (truth(), "What is expected and what is found are never kept or shown.")
        }
        (claim, "metadata") if CLAIMS.contains(&claim) => (json!({ "type": "object" }), "Kept beside it."),
        ("step", "undo") => {
            (scalar(), "What undoes it: `rollback --undo-steps` and `cancel --undo-steps` run it.")
        }
        ("step", "report") => (scalar(), "Markdown for the run's report."),
        ("output", "from") => (scalar(), "The file."),
        ("output" | "items", "json") => (text(), "The place in it: $.meta.count."),
        ("approve", "question") => (scalar(), "What is asked."),
        ("approve", "answer") => (words(&["approval", "text", "number", "json"]), "What is wanted."),
        ("approve", "choices") => (reference("words"), "The answers to choose from."),
        ("foreach", "items") => (
            json!({ "anyOf": [{ "type": "string" }, { "type": "array" }, reference("items")] }),
            "A list, an expression that gives one, a command whose output is an item a line, or a file.",
        ),
        ("foreach", "as") => (text(), "The name under which expressions read the item."),
        ("foreach", "key") => (scalar(), "What names each item among the others."),
        ("foreach", "filter") => (condition(), "Items for which it is false are left out."),
        ("foreach", "sort_by") => (text(), "An expression by which items are put in order."),
        ("foreach", "distinct") => (condition(), "Of items that are the same, only the first stays."),
        ("foreach", "offset") => (count(0), "How many are passed over."),
        ("foreach", "max_items") => (count(0), "How many are taken."),
        ("foreach", "max_parallel") => (count(1), "How many are worked on at once."),
        ("foreach", "on_item_failure") => {
            (words(&["dead_letter", "stop", "skip"]), "What becomes of an item that failed for good.")
        }
        ("foreach", "max_failures") => (count(0), "How many items may fail."),
        ("foreach", "failure_rate") => {
            (json!({ "type": "number", "minimum": 0, "maximum": 1 }), "Which part of all may fail.")
        }
        ("foreach", "circuit_breaker") => (count(1), "How many in a row may fail with the same error."),
        ("foreach", "steps") => (reference("steps"), "What is done with each item."),
        ("items", "file") => (scalar(), "A file with an item a line."),
        ("repeat", "until") => (condition(), "Asked after each pass."),
        ("repeat", "max") => (count(1), "The most passes."),
        _ => return None,
    };
    let Value::Object(mut schema) = schema else { return Some(schema) };
    schema.insert("description".to_owned(), description.into());
    Some(Value::Object(schema))
}

#[cfg(test)]
mod tests {
    use super::{TABLES, property, schema};

    #[test]
    fn every_key_that_the_reader_knows_is_in_the_schema() {
        let schema = schema();
        for (name, set) in TABLES {
            let text = schema["$defs"][name].to_string();
            for key in set.keys {
                assert!(
                    property(name, key).is_some(),
                    "say in `property` what stands under `{key}` of {}",
                    set.what
                );
                assert!(text.contains(&format!("\"{key}\":{{")), "`{key}` of {}", set.what);
            }
        }
    }
}
