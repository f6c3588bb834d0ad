//! Random workflows, edits and changes of the world.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Engine;
use super::definition::{Kind, Name, OnItemFailure, Step, Steps, When, all, leaves};
use super::play::Feature;
use super::request::Adoption;
use super::world::{Failing, World};
use crate::random::seed::Seeded;

/// Features of a workflow or world.
pub type Features = BTreeSet<Feature>;

const LETTERS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
/// Maximum nesting of openers: deeper nesting repeats the cases of two levels at a multiple of the time.
const DEPTH_MAX: u32 = 2;
const ITEMS: [&str; 3] = ["x", "y", "z"];

/// Returns `true` with this probability in percent.
pub fn chance(random: &mut Seeded, percent: u64) -> bool {
    random.below(100) < percent
}

/// Returns a random entry.
///
/// # Panics
/// If the list is empty.
pub fn one_of<T: Clone>(random: &mut Seeded, values: &[T]) -> T {
    values[random.below(values.len() as u64) as usize].clone()
}

/// Returns a random workflow.
pub fn workflow(random: &mut Seeded, features: &Features) -> Steps {
    steps(random, features, 0, "")
}

fn steps(random: &mut Seeded, features: &Features, depth: u32, prefix: &str) -> Steps {
    let count = match depth {
        0 if features.contains(&Feature::Scopes) => 3 + random.below(3),
        0 => 2 + random.below(3),
        _ => 1 + random.below(2),
    };
    let mut made: Vec<Arc<Step>> = Vec::new();
    for letter in &LETTERS[..count as usize] {
        let step = step(random, features, &format!("{prefix}{letter}"), Site { depth, earlier: &made });
        let id = step.id.clone();
        made.push(Arc::new(step));
        if features.contains(&Feature::Hooks) && chance(random, 30) {
            made.extend(hooks(random, &id));
        }
    }
    made.into()
}

/// The place of a new step: its depth and the earlier steps.
#[derive(Clone, Copy)]
struct Site<'a> {
    depth: u32,
    earlier: &'a [Arc<Step>],
}

fn step(random: &mut Seeded, features: &Features, id: &str, site: Site<'_>) -> Step {
    let in_scopes = site.depth == 0 && features.contains(&Feature::Scopes);
    let kinds: &[Kind] = match site.depth {
        0 if in_scopes => &[Kind::Leaf, Kind::Group, Kind::Group, Kind::ForEach],
        ..DEPTH_MAX => &[Kind::Leaf, Kind::Leaf, Kind::Group, Kind::ForEach],
        _ => &[Kind::Leaf],
    };
    let kind = one_of(random, kinds);
    let is_candidate = |step: &&Arc<Step>| !step.when.is_hook();
    let earlier: Vec<Name> = site.earlier.iter().filter(is_candidate).map(|step| step.id.clone()).collect();
    let (needed, in_order) = if in_scopes { (20, 0) } else { (50, 60) };
    let mut needs: Vec<Name> = earlier.iter().filter(|_| chance(random, needed)).cloned().collect();
    if needs.is_empty() && chance(random, in_order) {
        needs.extend(earlier.last().cloned());
    }
    let other: Vec<&Name> = earlier.iter().filter(|id| !needs.contains(id)).collect();
    let reads = other.into_iter().filter(|_| chance(random, 15)).cloned().collect();
    let mut step = Step { kind, needs, reads, ..Step::leaf(id) };
    if features.contains(&Feature::Failures) && !step.needs.is_empty() {
        step.when = one_of(random, &[When::Success, When::Success, When::Always, When::Failure]);
        if step.when == When::Success && chance(random, 20) {
            step.skip_if = step.needs.first().cloned();
        }
    }
    match kind {
        Kind::Leaf => leaf(random, features, &mut step, site.earlier),
        Kind::Group | Kind::ForEach => {
            step.body = steps(random, features, site.depth + 1, id);
            opener(random, features, &mut step);
        }
    }
    step
}

fn leaf(random: &mut Seeded, features: &Features, step: &mut Step, earlier: &[Arc<Step>]) {
    // The last writer of each file: steps edit a file in order, never concurrently.
    let writers = earlier.iter().filter_map(|step| Some((step.file.clone()?, step)));
    let last: BTreeMap<Name, &Arc<Step>> = writers.collect();
    let owner = last.values().find(|owner| step.needs.contains(&owner.id));
    if let Some(owner) = owner
        && features.contains(&Feature::InPlace)
        && chance(random, 70)
    {
        step.file.clone_from(&owner.file);
        step.edits = true;
        step.output_modulus = one_of(random, &[1, 7]);
        step.file_modulus = one_of(random, &[5, 7]);
        return;
    }
    step.idempotent = !chance(random, 25);
    step.output_modulus = one_of(random, &[1, 2, 7]);
    step.file_modulus = one_of(random, &[1, 2, 7]);
    let suffix = one_of(random, &["", "$S", "$S"]);
    step.file = chance(random, 70).then(|| format!("{}{suffix}", step.id).into());
    if features.contains(&Feature::Retries) {
        step.retries = one_of(random, &[0, 1, 2]);
    }
    step.continue_on_error = features.contains(&Feature::Failures) && chance(random, 10);
}

fn opener(random: &mut Seeded, features: &Features, step: &mut Step) {
    if step.kind == Kind::Group {
        step.passes = one_of(random, &[1, 2, 3]);
        return;
    }
    step.items = ITEMS[..2].iter().map(|item| Name::from(*item)).collect();
    if features.contains(&Feature::DeadLetters) {
        step.failures_max = one_of(random, &[0, 0, 1, 2]);
    }
    if features.contains(&Feature::Stop) && chance(random, 50) {
        step.on_item_failure = OnItemFailure::Stop;
        step.failures_max = 0;
    }
}

fn hooks(random: &mut Seeded, id: &str) -> Vec<Arc<Step>> {
    let both = [When::OnSuccess, When::OnFailure];
    let edges = match random.below(4) {
        0 | 1 => vec![both[0]],
        2 => vec![both[1]],
        _ => both.to_vec(),
    };
    let hook = |when: When| {
        let name = format!("{id}.{}", if when == When::OnSuccess { "on_success" } else { "on_failure" });
        let idempotent = !chance(random, 20);
        let leaf = Step { output_modulus: 1, idempotent, ..Step::leaf(&format!("{name}.h")) };
        let body = Steps::from([Arc::new(leaf)]);
        let needs = vec![id.into()];
        Arc::new(Step { kind: Kind::Group, needs, when, continue_on_error: true, body, ..Step::leaf(&name) })
    };
    edges.into_iter().map(hook).collect()
}

/// Returns the steps after `change`, applied to nested steps first. A step mapped to `None` is removed.
fn edit(steps: &[Arc<Step>], change: &mut impl FnMut(Step) -> Option<Step>) -> Steps {
    let mut edited = Vec::new();
    for step in steps {
        let body = edit(&step.body, change);
        edited.extend(change(Step { body, ..Step::clone(step) }).map(Arc::new));
    }
    edited.into()
}

/// Returns a random edit: steps changed, added and removed, items added and removed.
pub fn adoption(random: &mut Seeded, engine: &mut Engine) -> Adoption {
    let old = engine.disk_definition.steps.clone();
    let mut rerun: Vec<Name> = Vec::new();
    let mut keep: Vec<Name> = Vec::new();
    for leaf in leaves(&old) {
        if chance(random, 30) {
            let choice = if chance(random, 50) { &mut rerun } else { &mut keep };
            choice.push(leaf.id.clone());
        }
    }
    let version = 1 + leaves(&old).iter().map(|leaf| leaf.version).max().unwrap_or(0);
    let needed: BTreeSet<Name> =
        all(&old).iter().flat_map(|step| step.upstream().cloned().collect::<Vec<_>>()).collect();
    let removes = chance(random, 40);
    let is_removed = |step: &&Arc<Step>| removes && !needed.contains(&step.id) && chance(random, 10);
    let removed: BTreeSet<Name> = all(&old).iter().filter(is_removed).map(|step| step.id.clone()).collect();
    let changed = edit(&old, &mut |mut step| {
        if removed.contains(&step.id) || (!step.is_leaf() && step.body.is_empty()) {
            return None;
        }
        if rerun.contains(&step.id) || keep.contains(&step.id) {
            step.version = version;
        }
        if step.kind == Kind::ForEach && chance(random, 30) {
            step.items = items(random);
        }
        Some(step)
    });
    let steps = if changed.is_empty() { old } else { changed };
    let steps = with_new_step(random, engine, steps);
    rerun.retain(|id| !removed.contains(id));
    keep.retain(|id| !removed.contains(id));
    without_removed_needs(
        steps,
        version,
        Adoption { steps: Steps::from([]), rerun_changed: rerun, keep_finished: keep },
    )
}

fn items(random: &mut Seeded) -> Vec<Name> {
    loop {
        let items: Vec<Name> =
            ITEMS.iter().filter(|_| chance(random, 60)).map(|item| Name::from(*item)).collect();
        if !items.is_empty() {
            return items;
        }
    }
}

fn with_new_step(random: &mut Seeded, engine: &mut Engine, steps: Steps) -> Steps {
    let owners: Vec<Name> =
        steps.iter().filter(|step| !step.when.is_hook()).map(|step| step.id.clone()).collect();
    if owners.is_empty() || !chance(random, 30) {
        return steps;
    }
    let name = format!("n{}", engine.next_number());
    let needs = vec![one_of(random, &owners)];
    let new = Step { needs, file: Some(name.as_str().into()), ..Step::leaf(&name) };
    steps.iter().cloned().chain([Arc::new(new)]).collect()
}

/// Removes needs on removed steps. Changed needs change the definition.
fn without_removed_needs(steps: Steps, version: u32, mut adoption: Adoption) -> Adoption {
    let ids: BTreeSet<Name> = all(&steps).iter().map(|step| step.id.clone()).collect();
    adoption.steps = edit(&steps, &mut |mut step| {
        if step.upstream().all(|id| ids.contains(id)) {
            return Some(step);
        }
        if step.when.is_hook() {
            return None;
        }
        adoption.keep_finished.retain(|id| *id != step.id);
        adoption.rerun_changed.push(step.id.clone());
        step.version = version;
        step.needs.retain(|id| ids.contains(id));
        step.reads.retain(|id| ids.contains(id));
        step.skip_if = None;
        Some(step)
    });
    adoption
}

/// Changes the world: files are lost, hidden inputs change, other steps fail.
pub fn upset(random: &mut Seeded, world: &mut World, steps: &[Arc<Step>], features: &Features) {
    world.files.retain(|_, _| !chance(random, 20));
    let leaves = leaves(steps);
    for leaf in &leaves {
        if chance(random, 25) {
            world.hidden.insert(leaf.id.clone(), one_of(random, &[0, 1, 2, 5]));
        }
    }
    if chance(random, 30) {
        world.hidden.clear();
    }
    world.failing.clear();
    world.flaky.clear();
    if features.contains(&Feature::Retries) {
        for leaf in &leaves {
            if chance(random, 30) {
                world.flaky.insert(leaf.id.clone(), one_of(random, &[1, 1, 2, 3]));
            }
        }
    }
    world.unknown.clear();
    if features.contains(&Feature::Unknown) && chance(random, 50) {
        world.unknown = world.files.keys().filter(|_| chance(random, 20)).cloned().collect();
    }
    let parts = ["", ":x", ":y", "~1", "~2"];
    let fails = [Feature::Failures, Feature::DeadLetters, Feature::Hooks, Feature::Stop, Feature::Skip];
    if fails.iter().any(|feature| features.contains(feature)) && chance(random, 50) {
        for _ in 0..=random.below(2) {
            let step = one_of(random, &leaves).id.clone();
            world.failing.insert(Failing { step, scope_part: one_of(random, &parts) });
        }
    } else if chance(random, 30) {
        world.failing.insert(Failing { step: one_of(random, &leaves).id.clone(), scope_part: "" });
    }
    scopes_fail(random, world, steps, features);
}

/// Lets a leaf below each of several openers fail, if the workflow has the feature.
pub fn scopes_fail(random: &mut Seeded, world: &mut World, steps: &[Arc<Step>], features: &Features) {
    for opener in steps.iter().filter(|step| features.contains(&Feature::Scopes) && !step.is_leaf()) {
        if chance(random, 50) {
            let step = one_of(random, &leaves(&opener.body)).id.clone();
            world.failing.insert(Failing { step, scope_part: "" });
        }
    }
}
