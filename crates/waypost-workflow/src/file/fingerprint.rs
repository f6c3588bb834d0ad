//! What a step means, as one digest: it tells whether a changed file touches a step.

use serde_json::json;
use sha2::{Digest, Sha256};

use super::step::Draft;
use super::work::{Approval, Work};
use super::workflow::{Shell, Tolerance};
use crate::expr::Template;

/// Version of what is hashed; a change of the recipe must not look like a change of the file.
const RECIPE: u32 = 1;

/// SHA-256, in hex, over what `draft` does and where its values come from.
///
/// Not over: comments, the order of keys, names, descriptions, timeouts, retries, `grace`, `report`,
/// `idempotent`, nor how a text is quoted or folded. `shared` is the `env` of the workflow and of `defaults`.
pub(super) fn fingerprint(draft: &Draft<'_>, shared: &[&[(String, Template)]]) -> String {
    let text = |template: &Template| template.as_str().to_owned();
    // A map: later layers replace earlier ones, and the order of names means nothing.
    let mut env = std::collections::BTreeMap::new();
    for (name, template) in shared.iter().copied().flatten() {
        env.insert(name.as_str(), text(template));
    }
    for (name, template, _) in &draft.env {
        env.insert(name.as_str(), text(template));
    }
    let outputs: std::collections::BTreeMap<_, _> = draft
        .outputs
        .iter()
        .map(|(name, source, _)| {
            (name.as_str(), (text(&source.from), source.json.as_ref().map(ToString::to_string)))
        })
        .collect();
    let mut needs: Vec<&str> = draft.needs.iter().flatten().map(|(id, _)| id.as_str()).collect();
    needs.sort_unstable();
    needs.dedup();
    let shell = match &draft.shell {
        Shell::Default => None,
        Shell::Command(words) => Some(words),
    };
    let tolerance = match &draft.tolerance {
        Tolerance::Nothing => json!(false),
        Tolerance::Everything => json!(true),
        Tolerance::ExitCodes(codes) => json!(codes),
    };
    let work = draft.work.as_ref().map(|(work, _)| match work {
        Work::Run(command) => json!(text(command)),
        Work::Approve(Approval { question, answer }) => {
            json!({ "approve": text(question), "answer": answer.told() })
        }
        Work::Sleep(time) => json!({ "sleep": time.as_nanos().to_string() }),
        Work::Wait(name) => json!({ "wait": text(name) }),
    });
    let meaning = json!([
        RECIPE,
        work,
        env,
        draft.dir.as_ref().map(|(dir, _)| text(dir)),
        shell,
        draft.condition.as_ref().map(|(condition, _)| condition.as_str()),
        outputs,
        draft.capture.map(|capture| capture.as_str()),
        draft.stdin.as_ref().map(|(stdin, _)| text(stdin)),
        needs,
        tolerance,
    ]);
    let digest = Sha256::digest(meaning.to_string().as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
