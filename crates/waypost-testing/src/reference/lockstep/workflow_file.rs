//! Steps of the model as a workflow file.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::super::definition::{Kind, Name, Step, Steps, When};
use super::restrict;

/// The variable with the scope in the file name of a step.
const SCOPE: &str = "FILE_SCOPE";

/// The surroundings of a step in the file.
#[derive(Debug, Clone, Copy)]
struct FileSite<'a> {
    /// The expressions for the scope in file names.
    around: &'a [String],
    /// The start of the command line of each step.
    execute: &'a str,
}

/// Returns the workflow file of steps. `execute` is the start of the command line of each step.
pub(super) fn workflow(steps: &Steps, execute: &str) -> String {
    json!({ "name": "reference", "max_parallel": 2, "steps": list(steps, FileSite { around: &[], execute }) })
        .to_string()
}

/// Returns the entries of steps.
fn list(steps: &Steps, site: FileSite<'_>) -> Vec<Value> {
    let own = steps.iter().filter(|step| !step.when.is_hook());
    own.map(|step| entry(step, steps, site)).collect()
}

fn entry(step: &Arc<Step>, scope: &Steps, site: FileSite<'_>) -> Value {
    let FileSite { around, execute } = site;
    let mut node = json!({ "id": &*step.id, "needs": step.needs });
    match (step.when, &step.skip_if) {
        (When::Always, _) => node["if"] = json!("always()"),
        (When::Failure, _) => node["if"] = json!("failure()"),
        (_, Some(need)) => {
            node["if"] = json!(format!("(steps.{need}.outputs.v | default('1', true) | int) % 3 != 0"));
        }
        _ => {}
    }
    if step.continue_on_error {
        node["continue_on_error"] = json!(true);
    }
    match step.kind {
        Kind::Leaf => leaf(&mut node, step, scope, site),
        Kind::Group => {
            let pass = (step.passes > 1).then(|| "${{ iteration }}".to_owned());
            let around: Vec<String> = around.iter().cloned().chain(pass).collect();
            node["steps"] = json!(list(&step.body, FileSite { around: &around, execute }));
            if step.passes > 1 {
                let until = format!("iteration >= {}", step.passes);
                node["repeat"] = json!({ "until": until, "max": step.passes });
            }
        }
        Kind::ForEach => {
            let item = format!("i_{}", step.id);
            let around: Vec<String> = around.iter().cloned().chain([format!("${{{{ {item} }}}}")]).collect();
            let steps = list(&step.body, FileSite { around: &around, execute });
            node["foreach"] = json!({ "items": step.items, "as": item, "steps": steps });
            if step.failures_max > 0 {
                node["foreach"]["max_failures"] = json!(step.failures_max);
            }
        }
    }
    for hook in scope.iter().filter(|hook| hook.when.is_hook() && hook.needs == [step.id.clone()]) {
        let key = if hook.when == When::OnSuccess { "on_success" } else { "on_failure" };
        let mut inner = json!({ "id": restrict::id(&hook.body[0].id) });
        leaf(&mut inner, &hook.body[0], &Steps::from([]), site);
        node[key] = json!([inner]);
    }
    node
}

fn leaf(node: &mut Value, step: &Step, scope: &Steps, site: FileSite<'_>) {
    let FileSite { around, execute } = site;
    let is_leaf = |id: &Name| scope.iter().any(|step| step.id == *id && step.is_leaf());
    let read = step.needs.iter().filter(|id| is_leaf(id));
    let mut env: BTreeMap<String, String> = read
        .map(|id| (format!("P_{id}"), format!("${{{{ steps.{id}.outputs.v | default('0', true) }}}}")))
        .collect();
    let mut command = format!(
        "{execute} --id {} --version {} --output-modulus {} --file-modulus {}",
        restrict::id(&step.id),
        step.version,
        step.output_modulus,
        step.file_modulus
    );
    if let Some(file) = &step.file {
        let name = file.replace("$S", "");
        let full: Vec<String> = std::iter::once(name.clone()).chain(around.iter().cloned()).collect();
        node["evidence"] = json!([{ "sha256": format!("files/{}", full.join("-")) }]);
        command.push_str(&format!(" --file '{name}'"));
        if !around.is_empty() {
            env.insert(SCOPE.to_owned(), around.join("-"));
            command.push_str(&format!("\"-${SCOPE}\""));
        }
    }
    if step.edits {
        command.push_str(" --edits");
    }
    (node["run"], node["env"]) = (json!(command), json!(env));
    if !step.idempotent {
        node["idempotent"] = json!(false);
    }
}
