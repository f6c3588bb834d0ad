//! Traces: digests of the inputs of a step and of the outputs of an end. Pure.
//!
//! Input: a step, the ends that the step needs or reads, and the end of the step. Output: [`Trace`] and [`EndDigests`].

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;
use serde_json::value::RawValue;

use crate::engine::Program;
use crate::engine::scope::Scope;
use crate::engine::scope::fan_out::{Item, JoinedDigests};
use crate::id::{Digest, ScopePath, StepId};
use crate::plan::shape::{Shape, Step};
use crate::record::{Claim, EndDigests, Pack, Trace, pin_set};

/// The input of a scope without an opener.
fn no_input() -> Digest {
    Digest::of(&[])
}

/// Returns the current trace of a step; `None` if digests of a needed end are unknown.
pub(crate) fn trace_of<P: Program>(program: &P, scope: &Scope<'_, P::State>, place: usize) -> Option<Trace> {
    let step = &scope.shape.steps()[place];
    let mut needs = HashMap::new();
    for read in reads_of(program, scope, place) {
        if let Some(end) = scope.digests.get(&read) {
            needs.insert(read, end.output);
        }
    }
    for need in scope.shape.needs(place) {
        let need = &scope.shape.steps()[*need].id;
        needs.insert(need.clone(), scope.digests.get(need)?.both());
    }
    let input = scope.position.input.unwrap_or_else(no_input);
    let index = scope.opener.as_ref().filter(|_| program.reads_index(scope.step_ref(place)));
    let input =
        index.map_or(input, |item| Digest::of_parts([&input.as_bytes()[..], &item.index.to_le_bytes()]));
    let previous_pass = match scope.pass_of(place) > 1 {
        true => Some(scope.digests.get(&step.id)?.both()),
        false => None,
    };
    let needs = needs.into_iter().collect();
    Some(Trace { definition: step.fingerprint, input, needs, previous_pass })
}

/// Returns the steps of the scope that a step reads without a `needs` edge.
pub(crate) fn reads_of<P: Program>(program: &P, scope: &Scope<'_, P::State>, place: usize) -> Vec<StepId> {
    let mut reads = program.reads(scope.step_ref(place));
    let needs = scope.shape.needs(place);
    reads.retain(|read| {
        scope.shape.place(read.as_str()).is_some_and(|read| read != place && !needs.contains(&read))
    });
    reads
}

/// Returns the pass of a step in an iteration: 1, except for a repeated step with a scope per pass.
pub(crate) fn pass_in(shape: &Shape, place: usize, iteration: &[u32]) -> u32 {
    let has_passes = shape.steps()[place].children.as_ref().is_some_and(|children| children.passes);
    let pass = iteration.last().filter(|_| has_passes && shape.share_loop(place, place));
    pass.copied().unwrap_or(1)
}

/// Returns the input of a child scope: its item, and the input of the opener. Excludes the definition of the
/// opener and the other items, so that an added item reruns no other item.
pub(crate) fn child_input(opener: &Trace, item: &Item) -> Digest {
    let value = item.value.to_string();
    let mut parts = vec![item.key.as_bytes(), value.as_bytes(), opener.input.as_bytes()];
    parts.extend(opener.previous_pass.iter().map(|pass| &pass.as_bytes()[..]));
    parts.extend(opener.needs.iter().flat_map(|(step, of)| [step.as_str().as_bytes(), of.as_bytes()]));
    Digest::of_parts(parts)
}

/// The result of an end.
#[derive(Debug, Default)]
pub(crate) struct EndResult<'a> {
    /// The output: the step's part of the state.
    pub(crate) output: Option<Value>,
    /// Pins of the step.
    pub(crate) evidence: Option<&'a Pack>,
    /// The digests of the joined children: outputs of nested children, and pins.
    pub(crate) children: Option<EndDigests>,
}

/// Returns the digests of a completed end.
pub(crate) fn digests_of<S>(scope: &Scope<'_, S>, place: usize, result: &EndResult<'_>) -> EndDigests {
    let output = result.output.as_ref().map_or_else(String::new, |output| canonical(&output.to_string()));
    let nested = result.children.iter().map(|children| &children.output.as_bytes()[..]);
    let output = Digest::of_parts([b"completed", output.as_bytes()].into_iter().chain(nested));
    EndDigests { output, pins: pins_of(scope, place, result) }
}

/// Returns the digests of an end in a graph with routes: of the whole state, and of the pins in force so far.
pub(crate) fn route_digests(pins_so_far: Option<Digest>, state: &[u8], result: &EndResult<'_>) -> EndDigests {
    let state =
        std::str::from_utf8(state).map_or_else(|_| state.to_vec(), |text| canonical(text).into_bytes());
    // In a dry run, the result of the step is not in the state.
    let output = result.output.as_ref().map(Value::to_string).unwrap_or_default();
    let output = Digest::of_parts([&b"state"[..], &state, output.as_bytes()]);
    let claims = claims_of(result);
    let claims = claims.iter().map(|claim| claim.as_bytes());
    let children = result.children.as_ref().map(|children| &children.pins);
    let before = pins_so_far.iter().chain(children).map(|pins| &pins.as_bytes()[..]);
    let is_any = result.children.is_some() || claims.len() > 0;
    let pins = match is_any {
        true => Digest::of_parts(claims.chain([&b"above"[..]]).chain(before)),
        false => pins_so_far.unwrap_or_else(no_input),
    };
    EndDigests { output, pins }
}

/// Returns the trace of a join in a graph with routes. The input state of the join is the state at the opening.
pub(crate) fn join_trace(step: &Step, outcomes: Digest) -> Trace {
    Trace { definition: step.fingerprint, input: outcomes, needs: BTreeMap::new(), previous_pass: None }
}

/// Writes a JSON text with sorted keys. Scalars stay as written: no digit of a number is lost. Not JSON: the text.
fn canonical(text: &str) -> String {
    match text.as_bytes().first() {
        Some(b'{') => match serde_json::from_str::<BTreeMap<String, &RawValue>>(text) {
            Ok(members) => {
                let member = |(key, value): (String, &RawValue)| {
                    format!("{}:{}", Value::from(key), canonical(value.get()))
                };
                format!("{{{}}}", members.into_iter().map(member).collect::<Vec<_>>().join(","))
            }
            Err(_) => text.to_owned(),
        },
        Some(b'[') => match serde_json::from_str::<Vec<&RawValue>>(text) {
            Ok(items) => {
                let items = items.into_iter().map(|item| canonical(item.get()));
                format!("[{}]", items.collect::<Vec<_>>().join(","))
            }
            Err(_) => text.to_owned(),
        },
        _ => text.to_owned(),
    }
}

/// Returns the digests of a skipped end: a fixed output, and the pins of the needs.
pub(crate) fn skipped_digests<S>(scope: &Scope<'_, S>, place: usize) -> EndDigests {
    EndDigests { output: Digest::of(b"skipped"), pins: pins_of(scope, place, &EndResult::default()) }
}

/// Returns the digests of a failed end, unequal to those of every other end.
pub(crate) fn failed_digests(scope: &ScopePath, step: &StepId, seq: u64) -> EndDigests {
    let seq = seq.to_le_bytes();
    let unique = Digest::of_parts([b"failed", scope.as_str().as_bytes(), step.as_str().as_bytes(), &seq]);
    EndDigests { output: unique, pins: unique }
}

/// Returns the claims of an end as texts to digest: kind, subject, expected value and machine of each.
pub(crate) fn claims_of(result: &EndResult<'_>) -> Vec<String> {
    let claims = result.evidence.into_iter().flat_map(|pack| &pack.claims);
    let pin = |claim: &Claim| serde_json::json!([claim.kind, claim.subject, claim.expect, claim.host]);
    claims.map(|claim| pin(claim).to_string()).collect()
}

/// Returns the pin digest of an end: of its claims, and of the pins of its children and needs.
pub(crate) fn pins_of<S>(scope: &Scope<'_, S>, place: usize, result: &EndResult<'_>) -> Digest {
    let needs = scope.shape.needs(place).iter().map(|need| &scope.shape.steps()[*need].id);
    let above = needs.filter_map(|need| scope.digests.get(need)).chain(&result.children);
    pin_set(&claims_of(result), above.map(|end| end.pins))
}

/// Returns the digests of the work of a step before its hooks: the outputs of nested children, and the pins of the joined
/// scopes and of the step.
pub(crate) fn work_digests(evidence: Option<&Pack>, joined: Option<JoinedDigests>) -> EndDigests {
    let nested = joined.map(|joined| joined.nested);
    let claims = claims_of(&EndResult { evidence, ..EndResult::default() });
    let pins = pin_set(&claims, nested.iter().map(|nested| nested.pins));
    EndDigests { output: nested.map_or_else(no_input, |nested| nested.output), pins }
}

/// Returns the digests of an ended scope; `None` if a digest is unknown.
///
/// The output covers only the openers: the state of the scope has the outputs of its steps, but not those of nested
/// children. Steps without an end do not count: the hooks of a run share a graph, and a child runs one of them.
pub(crate) fn scope_digests<S>(scope: &Scope<'_, S>) -> Option<EndDigests> {
    let ended = |step: &&Step| scope.position.ledger.contains_key(&step.id);
    let digests_of = |step: &Step| scope.digests.get(&step.id).copied();
    // By name: the order of steps changes no result.
    let mut steps: Vec<&Step> = sinks_and_openers(scope.shape).filter(ended).collect();
    steps.sort_unstable_by(|one, other| one.id.cmp(&other.id));
    let ends: Option<Vec<EndDigests>> = steps.iter().map(|step| digests_of(step)).collect();
    let openers = steps.iter().filter(|step| step.children.is_some());
    let outputs: Option<Vec<Digest>> = openers.map(|step| Some(digests_of(step)?.output)).collect();
    Some(EndDigests {
        output: Digest::merkle(&outputs?),
        pins: pin_set(&[], ends?.into_iter().map(|end| end.pins)),
    })
}

/// Returns the steps without dependents, and the steps with children.
pub(crate) fn sinks_and_openers(shape: &Shape) -> impl Iterator<Item = &Step> {
    let is_sink = |place: usize| shape.followers(place).is_empty();
    let steps = shape.steps().iter().enumerate();
    steps.filter(move |(place, step)| step.children.is_some() || is_sink(*place)).map(|(_, step)| step)
}

#[cfg(test)]
mod tests {
    use super::canonical;

    #[test]
    fn the_order_of_members_makes_no_other_state_and_digits_do() {
        let same = |one: &str, other: &str| canonical(one) == canonical(other);

        assert!(same(r#"{"a":1,"b":[{"c":null,"d":"x"}]}"#, r#"{"b":[{"d":"x","c":null}],"a":1}"#));
        let [one, other] =
            ["340282366920938463463374607431768211455", "340282366920938463463374607431768211454"];
        assert!(!same(&format!("{{\"a\":{one}}}"), &format!("{{\"a\":{other}}}")));
        assert!(!same(r#"{"a":[1,2]}"#, r#"{"a":[2,1]}"#));
        assert!(!same(r#"{"a":"1"}"#, r#"{"a":1}"#));
    }
}
