//! Groups of steps, and `repeat`: a step or a group repeats until a condition holds.

use super::body::{self, BodyDraft};
use super::checker::Checker;
use super::fields::{Fields, KeySet};
use super::node::Node;
use super::step::Defaults;
use crate::expr::Condition;

/// Name of the pass in expressions, from 1.
pub(crate) const ITERATION: &str = "iteration";
/// Most passes of one loop: each pass is a step of the run.
const PASSES_MAX: u64 = 1_000_000;

pub(super) static REPEAT: KeySet =
    KeySet { what: "`repeat`", keys: &["until", "max"], later: &[], elsewhere: &[] };

/// Condition and limit of a repeated step.
#[derive(Debug, Clone)]
pub struct Repeat {
    /// Condition that ends the loop.
    pub until: Condition,
    /// Most passes; the step fails if the condition does not hold by then.
    pub max: u32,
}

pub(super) fn repeat<'n>(checker: &mut Checker<'_>, node: &'n Node) -> Option<(Repeat, &'n Node)> {
    let fields = Fields::of(checker, node, &REPEAT)?;
    let mut said = |key: &str, help: &str| {
        let found = fields.get(key);
        if found.is_none() && !fields.has_any(&[key]) {
            checker.wrong(node, format!("`repeat` has no `{key}`"), help);
        }
        found
    };
    let until = said("until", "write the end condition: `until: steps.test.exit_code == 0`");
    let max = said("max", "write the maximum number of iterations: `max: 10`");
    let condition = until.and_then(|node| checker.condition(node, "until"));
    let max = max.and_then(|node| checker.integer(node, "max", 1..=PASSES_MAX));
    Some((Repeat { until: condition?, max: u32::try_from(max?).ok()? }, until?))
}

/// Reads the steps of a group.
pub(super) fn group<'n>(
    checker: &mut Checker<'_>,
    node: &'n Node,
    id: &str,
    defaults: &Defaults<'n>,
) -> Option<BodyDraft<'n>> {
    let nodes = body::nodes(checker, node, ("the group", "steps"), "begin every step with `- `")?;
    Some(body::body(checker, nodes, id, defaults))
}
