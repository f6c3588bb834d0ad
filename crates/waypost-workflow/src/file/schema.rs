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
use super::parallel::PARALLEL_MAX;
use super::read::{DEFAULTS, PARAM, WORKFLOW};
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
                "description": "bash, sh, or a list of program and arguments: [python3, -c]."
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
        "description": "The steps of a durable run, and their shared settings.",
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
    let values = || json!({ "anyOf": [{ "type": "string" }, { "type": "array", "minItems": 1 }] });
    let truth = || json!({ "type": "boolean" });
    let count = |minimum: u64| json!({ "type": "integer", "minimum": minimum });
    let words = |words: &[&str]| json!({ "enum": words });
    let condition = || json!({ "type": ["string", "boolean"] });
    let map_of = |name: &str| json!({ "type": "object", "additionalProperties": reference(name) });
    let (schema, description) = match (table, key) {
        ("workflow", "version") => (json!({ "const": 1 }), "Version of the language."),
        ("workflow", "params") => (map_of("param"), "Parameters of a run."),
        ("workflow", "secrets") => {
            let file = json!({ "type": "object", "properties": { "file": { "type": "string" } }, "required": ["file"], "additionalProperties": false });
            let of_file = json!({ "type": "object", "additionalProperties": file });
            let items = json!({ "anyOf": [{ "type": "string" }, of_file] });
            let schema = json!({ "anyOf": [{ "type": "string" }, { "type": "array", "items": items }] });
            (schema, "Names of variables from the caller or from files; values are never recorded.")
        }
        ("workflow", "defaults") => (reference("defaults"), "Defaults of all steps."),
        ("workflow", "max_parallel") => (
            json!({ "type": "integer", "minimum": 1, "maximum": PARALLEL_MAX }),
            "Maximum number of steps that run at the same time.",
        ),
        ("workflow", "timeout") => (reference("duration"), "Maximum duration of the run."),
        ("workflow", "budget") => (reference("budget"), "Maximum usage of all steps together."),
        ("workflow", "allow_paths") => {
            (reference("words"), "Folders, as absolute paths, in which evidence may lie.")
        }
        ("workflow", "labels") => (reference("env"), "Names and values for finding runs."),
        ("workflow", "checkpoints") => (reference("checkpoints"), "How checkpoints are written and kept."),
        ("workflow", "fail_fast") => (
            json!({ "type": "boolean" }),
            "After a failure, start no further step, not even independent ones.",
        ),
        ("workflow", "distribute") => (
            json!({ "type": "boolean" }),
            "Let any worker execute the commands and agents of a submitted run, not only the worker of the run.",
        ),
        ("workflow", "max_cuts") => {
            (count(1), "Consecutive cuts after which a step starts only alone; one more cut fails the step.")
        }
        ("workflow", "on_success") => (reference("steps"), "Steps to run after the run has succeeded."),
        ("workflow", "on_waiting") => (reference("steps"), "Steps to run when a step begins to wait."),
        ("workflow", "on_finish") => (reference("steps"), "Steps to run at the end of the run."),
        ("workflow", "on_failure") => (reference("steps"), "Steps to run after the run has failed."),
        ("workflow", "store") => {
            (text(), "Store of its runs: sqlite:PATH or file:DIR, relative to the folder of the file.")
        }
        ("workflow", "steps") => (reference("steps"), "The steps."),
        ("workflow" | "step", "name") => (text(), "Display name."),
        ("workflow" | "param", "description") => (text(), "Description for readers."),
        ("workflow" | "defaults" | "step", "env") => (reference("env"), "Variables."),
        ("defaults" | "step", "shell") => (reference("shell"), "Interpreter of the command."),
        ("defaults" | "step", "timeout") => (reference("duration"), "Maximum duration of one attempt."),
        ("defaults" | "step", "retry") => (reference("retry"), "Retries after the first attempt."),
        ("defaults" | "step", "dir") => {
            (scalar(), "Working folder, relative to the folder of the workflow file.")
        }
        ("param", "type") => (words(&["string", "number", "integer", "bool", "json"]), "Its type."),
        ("param", "default") => (json!({}), "Value if the param is not given."),
        ("param", "required") => (truth(), "Whether the param must be given."),
        ("param", "pattern") => (text(), "Regular expression for the value."),
        ("checkpoints", "retention") => (count(2), "Number of step boundaries that keep their state."),
        ("checkpoints", "durability") => (words(&["sync", "async"]), "When a checkpoint counts as written."),
        ("checkpoints", "on_failure") => {
            (words(&["fail", "tolerate"]), "Reaction to a checkpoint that cannot be written.")
        }
        ("checkpoints", "interval") => (reference("duration"), "Interval of checkpoints during a long step."),
        ("budget", "cost") => (
            json!({ "type": "number", "exclusiveMinimum": 0 }),
            "Maximum cost, in the currency reported by the steps.",
        ),
        ("budget", "tokens") => (json!({ "type": ["integer", "string"] }), "How many: 50000, 200k, 2M."),
        ("retry", "max") => (count(0), "Retries after the first attempt."),
        ("retry", "delay") => (reference("duration"), "Delay before the first retry."),
        ("retry", "max_delay") => (reference("duration"), "Maximum delay."),
        ("retry", "backoff") => (words(&["fixed", "linear", "exponential"]), "Growth of the delay."),
        ("retry", "jitter") => (truth(), "Whether delays vary at random."),
        ("retry", "when") => {
            (reference("words"), "Failures to retry: timeout, exit N, signal, evidence, any.")
        }
        ("step", "id") => (
            json!({ "type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_-]*$", "maxLength": 64 }),
            "Unique id of the step.",
        ),
        ("step" | "items", "run") => (scalar(), "The command."),
        ("step", "agent") => (text(), "Agent: claude, codex, gemini, or a name from the configuration."),
        ("step", "prompt") => (scalar(), "Prompt of the agent."),
        ("step", "service") => (scalar(), "Long-lived command, running beside the later steps."),
        ("step", "approve") => (reference("approve"), "Question to a person."),
        ("step", "sleep") => (reference("duration"), "Duration of the wait."),
        ("step", "wait") => (scalar(), "Signal to wait for."),
        ("step", "foreach") => (reference("foreach"), "Items, with the steps for each."),
        ("step", "workflow") => (text(), "Another workflow file to include."),
        ("step", "params") => (json!({ "type": "object" }), "Params of the included file."),
        ("step", "steps") => (reference("steps"), "Steps of the group."),
        ("step", "repeat") => (reference("repeat"), "Condition that ends the iterations."),
        ("step", "on_failure") => (reference("steps"), "Steps to run after a failure."),
        ("step", "on_success") => (reference("steps"), "Steps to run after success."),
        ("step", "on_exit_code") => (reference("hooks"), "Steps to run after an exit code, by exit code."),
        ("step", "renamed_from") => (text(), "Previous id of the step: a resume carries its result over."),
        ("step", "needs") => (reference("words"), "Steps that must finish before."),
        ("step", "if") => (condition(), "Condition of the step."),
        ("step", "outputs") => (map_of("output"), "Outputs for later steps, from files."),
        ("step", "capture") => {
            (words(&["text", "json", "lines", "number"]), "Format of stdout as output `result`.")
        }
        ("step", "stdin") => (scalar(), "Text for stdin."),
        ("step", "continue_on_error") => (reference("codes"), "Tolerated failures: true, or exit codes."),
        ("step", "runs_on") => {
            (reference("words"), "Tags of the workers that may execute the step of a submitted run.")
        }
        ("step", "idempotent") => (truth(), "false if running twice does harm."),
        ("step", "max_cuts") => (
            count(1),
            "Consecutive cuts after which the step starts only alone; one more cut fails the step.",
        ),
        ("step", "grace") => (reference("duration"), "Time between the request to stop and the kill."),
        ("step", "evidence") => (reference("evidence"), "Claims that prove the result of the step."),
        ("pack", "at_least") => (count(1), "Minimum number of claims that must hold."),
        ("pack", "any") => (json!({ "const": true }), "Whether a single claim is enough."),
        ("pack", "of") => (reference("claims"), "The claims."),
        ("file", "file") => (scalar(), "Path beneath the workflow folder, or a pattern: out/*.csv."),
        ("file", "type") => (words(&["file", "directory", "symlink", "any"]), "Expected type."),
        ("file", "size") => {
            (json!({}), "Expected size: 12, \"> 0\", \">= 2 KiB\", or a list of accepted values.")
        }
        ("file", "mode") => (reference("words"), "Expected mode, in octal digits: \"0644\"."),
        ("file", "json") => (json!({ "type": "object" }), "Expected values by JSON path: { $.status: ok }."),
        ("file", "newer_than") => (reference("words"), "Files and times; the file must not be older."),
        ("file", "count") => (json!({}), "Expected number of matching files: 3, \"> 5\"."),
        ("file", "contains") => (reference("words"), "Texts that the file must contain."),
        ("file", "matches") => (text(), "Regular expression that must match in the file."),
        ("file", "lines") => (json!({}), "Expected number of lines: 3, \"> 5\"."),
        ("file", "absent") => (json!({ "const": true }), "Whether the path must not exist."),
        ("port", "port") => (scalar(), "Port of this machine, or host:port."),
        ("port", "listening") => (truth(), "false if no process may listen on the port."),
        ("json", "json") => (scalar(), "A JSON file."),
        ("json", "path") => (text(), "JSON path of the value: $.meta.count."),
        ("json", "value") => {
            (json!({}), "Expected value: 3, \"> 5\", \"~ regex\", or a list of accepted values.")
        }
        ("sqlite", "sqlite") => (scalar(), "An SQLite database."),
        ("command", "command") => (scalar(), "Command for `sh -eu -c`, run at each check."),
        ("command", "exit") => (json!({}), "Expected exit code: 3, \"> 0\", [0, 1]. Default 0."),
        ("command", "stdout") => {
            (json!({}), "Expected stdout, without surrounding white space: ok, \"> 5\", \"~ regex\".")
        }
        ("command", "stderr") => (json!({}), "Expected stderr."),
        ("command" | "exec", "env") => {
            (reference("words"), "Variables of the command; secrets only by name.")
        }
        ("exec", "exec") => (scalar(), "Program that decides: exit 0 holds, 1 fails, 2 unknown."),
        ("exec", "with") => (json!({ "type": "object" }), "Additional JSON input of the program."),
        ("process", "process") => (scalar(), "Name of a running program, or a process id."),
        ("process", "pid_file") => (scalar(), "File with the process id."),
        ("process", "args") => (json!({}), "Expected arguments, separated by spaces: \"~ --port 8089\"."),
        ("process", "user") => (scalar(), "Expected user, by name or number."),
        ("process", "count") => (json!({}), "Expected number of processes. Default at least 1."),
        ("git", "git") => {
            (scalar(), "Top folder of a repository; pins the commit if no expectation is given.")
        }
        ("git", "head") => (scalar(), "Expected branch, or at least 7 digits of the commit."),
        ("git", "clean") => (truth(), "Whether there must be no modified, staged or untracked files."),
        ("sha256", "sha256") => {
            (scalar(), "File, folder or pattern; the content is pinned when the step ends.")
        }
        ("postgres", "postgres") => {
            (scalar(), "PostgreSQL database: a URL or `key=value` pairs without a password, or env:NAME.")
        }
        ("sqlite" | "postgres", "table") => (text(), "The table."),
        ("sqlite" | "postgres", "where") => {
            (json!({ "type": "object" }), "Columns and values that select the rows.")
        }
        ("sqlite" | "postgres", "values") => {
            (json!({ "type": "object" }), "Expected values of other columns.")
        }
        ("sqlite" | "postgres", "count") => (json!({}), "Expected number of rows."),
        ("sqlite" | "postgres", "query") => (text(), "A read-only query."),
        ("sqlite" | "postgres", "equals") => (json!({}), "Expected first value of the query."),
        ("http", "http") => (scalar(), "URL of the request."),
        ("http", "status") => (json!({}), "Expected status. Default 2xx."),
        ("http", "method") => (words(&METHODS), "Method of the request. Default GET."),
        ("http", "headers") => (json!({ "type": "object" }), "Expected response headers."),
        ("http", "body") => (json!({}), "Expected body, without the last line break."),
        ("http", "json") => {
            (json!({ "type": "object" }), "Expected values in the body, by JSON path: $.status: ok.")
        }
        ("http", "contains") => (reference("words"), "Texts that the body must contain."),
        ("http", "private") => (truth(), "true to allow private addresses, outside the internet."),
        ("container", "container") => (scalar(), "Container, by name or id."),
        ("container", "running") => (truth(), "false if the container must exist and be stopped."),
        ("container", "healthy") => (truth(), "Expected health."),
        ("container", "image") => (json!({}), "Image of the container: nginx:1.27, \"~ ^nginx:\"."),
        ("container", "engine") => (words(&ENGINES), "Container engine. Default: every installed engine."),
        ("sha256", "is") => (scalar(), "Expected SHA-256."),
        ("sha256", "fast") => {
            (truth(), "Whether to read the files again only if size, times or inode changed.")
        }
        ("exit", "exit") => (json!({}), "Expected exit code of the step, or a list. Default 0."),
        (claim, "name") if CLAIMS.contains(&claim) => (text(), "Display name."),
        (claim, "not") if CLAIMS.contains(&claim) => (truth(), "Inverts the claim."),
        (claim, "timeout") if CLAIMS.contains(&claim) => {
            (reference("duration"), "Maximum duration of one check. Default 10s.")
        }
        (claim, "within") if CLAIMS.contains(&claim) => {
            (reference("duration"), "Time to repeat the check until the claim holds.")
        }
        (claim, "at") if CLAIMS.contains(&claim) => {
            (reference("words"), "When to check: commit, resume, verify.")
        }
        (claim, "severity") if CLAIMS.contains(&claim) => {
            (words(&["fail", "warn"]), "Whether a failed claim fails the step.")
        }
        (claim, "sensitive") if CLAIMS.contains(&claim) => {
            (truth(), "Never record or show the expected and the found value.")
        }
        (claim, "metadata") if CLAIMS.contains(&claim) => {
            (json!({ "type": "object" }), "Metadata recorded with the claim.")
        }
        ("step", "undo") => {
            (scalar(), "Command to undo the step, run by `rollback --undo-steps` and `cancel --undo-steps`.")
        }
        ("step", "report") => (scalar(), "Markdown for the run's report."),
        ("output", "from") => (scalar(), "The file."),
        ("output" | "items", "json") => (text(), "JSON path of the value: $.meta.count."),
        ("approve", "question") => (scalar(), "The question."),
        ("approve", "answer") => (words(&["approval", "text", "number", "json"]), "Type of the answer."),
        ("approve", "choices") => (reference("words"), "Accepted answers."),
        ("foreach", "items") => (
            json!({ "anyOf": [{ "type": "string" }, { "type": "array" }, reference("items")] }),
            "A list, an expression for a list, a command with one item per output line, a file, or a matrix.",
        ),
        ("foreach", "as") => (text(), "Name of the item in expressions."),
        ("foreach", "key") => (scalar(), "Unique key of each item."),
        ("foreach", "filter") => (condition(), "Condition that keeps an item."),
        ("foreach", "sort_by") => (text(), "Expression to sort by."),
        ("foreach", "distinct") => (condition(), "Whether to drop duplicate items."),
        ("foreach", "offset") => (count(0), "Number of items to skip."),
        ("foreach", "max_items") => (count(0), "Maximum number of items."),
        ("foreach", "max_parallel") => (count(1), "Maximum number of items that run at the same time."),
        ("foreach", "on_item_failure") => {
            (words(&["dead_letter", "stop", "skip"]), "Reaction to an item that failed after all retries.")
        }
        ("foreach", "max_failures") => (count(0), "Maximum number of failed items."),
        ("foreach", "failure_rate") => {
            (json!({ "type": "number", "minimum": 0, "maximum": 1 }), "Maximum share of failed items.")
        }
        ("foreach", "circuit_breaker") => {
            (count(1), "Maximum number of consecutive failures with the same error.")
        }
        ("foreach", "steps") => (reference("steps"), "Steps for each item."),
        ("items", "matrix") => (
            json!({ "type": "object", "minProperties": 1, "additionalProperties": values() }),
            "Lists of values by name; the items are the combinations, as maps.",
        ),
        ("items", "exclude") => (values(), "Combinations to drop: maps with some of the names."),
        ("items", "include") => (values(), "Combinations to add: maps with all names."),
        ("items", "file") => (scalar(), "A file with one item per line."),
        ("repeat", "until") => (condition(), "Condition that ends the iterations, checked after each."),
        ("repeat", "max") => (count(1), "Maximum number of iterations."),
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
