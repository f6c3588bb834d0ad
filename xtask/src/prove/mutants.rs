//! Mutation tests of the oracle: switches off the rules of the engine in turn, in a copy of the sources. A
//! play of generated workflows must find a defect each time, or a test must fail.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context as _, bail};

use crate::{output, repo};

/// What finds a defect while a rule is off.
#[derive(Clone, Copy)]
enum Detector {
    /// Plays of generated workflows of a level.
    Play(&'static str),
    /// Plays of generated workflows of a level, with requests of a person.
    Requests(&'static str),
    /// A test of a package, by its full name.
    Test { package: &'static str, name: &'static str },
}

use Detector::{Play, Requests, Test};

/// A rule of the engine and its mutation.
struct Rule {
    name: &'static str,
    /// The file in the sources of the engine's crate.
    file: &'static str,
    /// A line of the rule, once in the file.
    on: &'static str,
    off: &'static str,
    detector: Detector,
}

/// Rules of the engine. `Model` names the switch of the reference model for the same rule.
///
/// Switches of the model without an entry:
///
/// - `start`: a step with a result out of force cannot start; reuse or a loss of the result removes the result
///   before the start (`Scope::next_ready` skips the step until then).
/// - `cut-kept`: an end with failed evidence is dropped, and its step runs; nothing is left to compare.
/// - `kept-then`: without the results out of force at the target of a rollback, steps run again or a person is asked.
/// - `passes`: the iteration of a step has a single counter per loop, and a chain compares iterations.
/// - `fencing`, `read-after`, `signals-first`, `enter-signal`, `open-signal`: rules of several workers; the plays
///   have a single worker.
const RULES: [Rule; 24] = [
    Rule {
        name: "a changed file upstream counts for a step that needs it",
        file: "engine/walk/trace.rs",
        on: "needs.insert(need.clone(), scope.digests.get(need)?.both());",
        off: "needs.insert(need.clone(), scope.digests.get(need)?.output);",
        detector: Play("leaves"),
    },
    Rule {
        name: "the pins of steps further upstream are part of the pins",
        file: "engine/walk/trace.rs",
        on: "let above = needs.filter_map(|need| scope.digests.get(need)).chain(&result.children);",
        off: "let above = needs.filter_map(|_| None).chain(&result.children);",
        detector: Play("leaves"),
    },
    Rule {
        name: "a result is compared before it is reused",
        file: "engine/walk/early_cutoff.rs",
        on: "if let Some(difference) = self.difference(id, candidate, header.trace.as_ref()) {",
        off: "if let Some(difference) = self.difference(id, candidate, header.trace.as_ref()).filter(|_| false) {",
        detector: Play("leaves"),
    },
    Rule {
        name: "results downstream of an invalid one stay reusable",
        file: "engine/walk/invalidate.rs",
        on: "insert_reusable(position, &step.id, 1, Reusable::ended(settled, false));",
        off: "let _ = settled;",
        detector: Play("leaves"),
    },
    Rule {
        name: "the input of a child is that of the opener",
        file: "engine/walk/trace.rs",
        on: "parts.extend(opener.needs.iter().flat_map(|(step, of)| [step.as_str().as_bytes(), of.as_bytes()]));",
        off: "",
        detector: Play("items"),
    },
    Rule {
        name: "the pass before is part of the input of a pass",
        file: "engine/walk/trace.rs",
        on: "        true => Some(scope.digests.get(&step.id)?.both()),",
        off: "        true => None,",
        detector: Play("passes"),
    },
    Rule {
        name: "a person is asked about a result that must not be repeated",
        file: "engine/walk/reuse.rs",
        on: "if !retries && (was_done || begun.is_some()) {",
        off: "if !retries && (was_done || begun.is_some()) && false {",
        detector: Play("leaves"),
    },
    Rule {
        name: "the state is part of what a chain compares",
        file: "engine/walk/trace.rs",
        on: "let output = Digest::of_parts([&b\"state\"[..], &state, output.as_bytes()]);",
        off: "let output = Digest::of_parts([&b\"state\"[..], output.as_bytes()]);",
        detector: Play("chains"),
    },
    // Model: accept.
    Rule {
        name: "a kept definition covers results out of force too",
        file: "engine/walk/reuse.rs",
        on: "if then.definition != now.definition && !is_accepted() {",
        off: "if then.definition != now.definition {",
        detector: Requests("leaves"),
    },
    // Model: ask-dropped.
    Rule {
        name: "a person is asked about a dropped result that must not be repeated",
        file: "engine/walk/invalidate.rs",
        on: "} else if step.note_effect(position, was_done, entry) {",
        off: "} else if step.note_effect(&mut Position::default(), was_done, entry) {",
        detector: Requests("leaves"),
    },
    // Model: fresh.
    Rule {
        name: "a requested rerun reaches the children of openers",
        file: "engine/scope/children/earlier.rs",
        on: "scope.position.rerun_whole.contains(scope.step_id(place))",
        off: "scope.position.rerun_whole.contains(scope.step_id(place)) && false",
        detector: Requests("items"),
    },
    // Model: reopening.
    Rule {
        name: "an opener is reused only with the children of its own opening",
        file: "engine/walk/early_cutoff.rs",
        on: "fan.is_some_and(|fan| origin == Some(fan.since))",
        off: "fan.is_some()",
        detector: Play("items"),
    },
    // Model: over.
    Rule {
        name: "a step that is passed over or skipped keeps its results",
        file: "engine/scope/mod.rs",
        on: "(is(&[SettledAs::Failed]), is(&[SettledAs::Skipped, SettledAs::PassedOver]));",
        off: "(is(&[SettledAs::Failed]), false);",
        detector: Test {
            package: "waypost-cli",
            name: "rerun_pairs::a_failed_rerun_keeps_the_results_below_it",
        },
    },
    // Model: left.
    Rule {
        name: "the pins of a failed end are unequal to all others",
        file: "engine/walk/trace.rs",
        on: "EndDigests { output: unique, pins: unique }",
        off: "EndDigests { output: unique, pins: Digest::of_parts([b\"above\"]) }",
        detector: Test {
            package: "waypost-cli",
            name: "rerun_pairs::a_failure_counts_for_steps_beyond_its_readers",
        },
    },
    // Model: given.
    Rule {
        name: "the input of a child excludes the definition of its opener",
        file: "engine/walk/trace.rs",
        on: "let mut parts = vec![item.key.as_bytes(), value.as_bytes(), opener.input.as_bytes()];",
        off: "let mut parts = vec![item.key.as_bytes(), value.as_bytes(), opener.input.as_bytes(), opener.definition.as_bytes()];",
        detector: Test {
            package: "waypost-cli",
            name: "rerun_pairs::an_added_item_below_lost_evidence_runs_alone",
        },
    },
    // Model: base.
    Rule {
        name: "a step that edits a file runs after the step that made the file",
        file: "engine/walk/in_place.rs",
        on: "while let Some((mut earlier, mut checks)) = self.nearest_declarer((&path, &step), files) {",
        off: "while let Some((mut earlier, mut checks)) = self.nearest_declarer((&path, &step), files).filter(|_| false) {",
        detector: Test {
            package: "waypost-cli",
            name: "rerun_pairs::a_file_edited_in_place_is_made_again_from_the_first_step",
        },
    },
    // Model: since.
    Rule {
        name: "a rollback invalidates the steps that have begun since its target",
        file: "engine/time_travel/rollback/scopes.rs",
        on: "for step in self.begun.get(&scope).into_iter().flatten() {",
        off: "for step in self.begun.get(&scope).into_iter().flatten().take(0) {",
        detector: Test {
            package: "waypost-cli",
            name: "rerun_pairs::a_rollback_runs_again_what_has_run_since",
        },
    },
    // Model: careful-kept.
    Rule {
        name: "a rollback asks about effects since its target",
        file: "engine/time_travel/rollback/scopes.rs",
        on: "ask_about_effects(shape, position, |_, step| begun.contains(&step.id).then_some(None));",
        off: "ask_about_effects(shape, position, |_, _| None);",
        detector: Test {
            package: "waypost-cli",
            name: "rerun_pairs::a_rollback_repeats_no_effect_without_a_question",
        },
    },
    // Model: about.
    Rule {
        name: "a step under way shields earlier claims about its files",
        file: "plan/mod.rs",
        on: "let writers = if seq.is_some() {",
        off: "let writers = if seq.is_some() && false {",
        detector: Test {
            package: "waypost",
            name: "evidence_graph::in_flux::subjects_of_a_cut_step_are_verified_after_its_end",
        },
    },
    // Model: skipped-claim.
    Rule {
        name: "a claim that no later step replaced is verified before the next start",
        file: "engine/resume/trust.rs",
        on: "let is_due = deferred.iter().any(",
        off: "let is_due = false && deferred.iter().any(",
        detector: Test {
            package: "waypost",
            name: "evidence_graph::in_flux::subjects_of_a_cut_step_are_verified_after_its_end",
        },
    },
    // Model: trim-head.
    Rule {
        name: "retention keeps the head of a reusable chain",
        file: "store/retention.rs",
        on: "mark.needs.extend(chain.flatten());",
        off: "mark.needs.extend(chain.flatten().filter(|_| false));",
        detector: Test { package: "waypost", name: "retention::no_history_loses_what_it_goes_on_from" },
    },
    // Model: chain-left.
    Rule {
        name: "the pins in force are part of what a chain compares",
        file: "engine/walk/trace.rs",
        on: "let before = pins_so_far.iter().chain(children).map(",
        off: "let before = pins_so_far.iter().filter(|_| false).chain(children).map(",
        detector: Play("chains"),
    },
    // Model: begun.
    Rule {
        name: "a step begun since the rewind ends the reuse of a chain",
        file: "engine/walk/rewind.rs",
        on: "if next.as_ref() != visits.first() || was_begun {",
        off: "if next.as_ref() != visits.first() || (was_begun && false) {",
        detector: Play("chains"),
    },
    // Model: beside.
    Rule {
        name: "a chain remembers steps that must not be repeated and left the lineage",
        file: "engine/walk/rewind.rs",
        on: "chain.careful.extend(done.chain(begun).filter(|(step, _)| is_careful(step)));",
        off: "drop(done.chain(begun));",
        detector: Play("chains"),
    },
];

/// The options of `prove mutants`.
#[derive(Debug, clap::Args)]
pub(crate) struct MutantOptions {
    /// Seeds to play for each rule
    #[arg(long, default_value = "0..2000")]
    seeds: String,
    /// Only rules with this text in the name
    #[arg(long)]
    rule: Option<String>,
}

/// The sources of the engine's crate, in the workspace.
const SOURCES: &str = "crates/waypost/src";

/// The parts of the workspace that a build of the packages and their tests needs.
const PARTS: [&str; 12] = [
    ".cargo",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "Cargo.lock",
    "Cargo.toml",
    "README.md",
    "clippy.toml",
    "crates",
    "docs",
    "examples",
    "rust-toolchain.toml",
    "xtask",
];

/// Switches off each rule in turn, and fails if no play and no test finds a defect.
pub(super) fn run(options: &MutantOptions) -> anyhow::Result<()> {
    let copy = tempfile::tempdir()?;
    let root = repo::root();
    for part in PARTS.iter().filter(|part| root.join(part).exists()) {
        let status = Command::new("cp").arg("-a").arg(root.join(part)).arg(copy.path()).status()?;
        if !status.success() {
            bail!("cannot copy {part}");
        }
    }
    let is_wanted = |rule: &&Rule| options.rule.as_ref().is_none_or(|text| rule.name.contains(text.as_str()));
    let mut missed = 0;
    for rule in RULES.iter().filter(is_wanted) {
        let is_caught = catches(rule, copy.path(), &options.seeds)?;
        output::say(format!("{}: {}", if is_caught { "caught" } else { "NOT CAUGHT" }, rule.name));
        missed += usize::from(!is_caught);
    }
    if missed > 0 { bail!("{missed} rules can be switched off, and no defect is found") } else { Ok(()) }
}

/// Returns whether a play or a test finds a defect while a rule is switched off.
fn catches(rule: &Rule, copy: &Path, seeds: &str) -> anyhow::Result<bool> {
    let file = copy.join(SOURCES).join(rule.file);
    let text = fs::read_to_string(&file)?;
    fs::write(&file, without(rule, &text)?)?;
    let target = copy.join("target");
    let cargo = |args: &[&str]| {
        let mut command = Command::new("cargo");
        command.args(args).current_dir(copy).env("CARGO_TARGET_DIR", &target).env("RUSTFLAGS", "-Awarnings");
        command.output().context("cannot start cargo")
    };
    let built = match rule.detector {
        Play(_) | Requests(_) => cargo(&["build", "-q", "--package", "xtask"])?,
        Test { package, .. } => cargo(&["test", "-q", "--package", package, "--test", "it", "--no-run"])?,
    };
    if !built.status.success() {
        let why = String::from_utf8_lossy(&built.stderr);
        bail!("without the rule `{}` it does not build: {why}", rule.name);
    }
    let tried = match rule.detector {
        Play(level) => play(copy, &["--level", level, "--seeds", seeds])?,
        Requests(level) => play(copy, &["--level", level, "--seeds", seeds, "--requests", "main"])?,
        Test { package, name } => {
            cargo(&["test", "-q", "--package", package, "--test", "it", "--", "--exact", name])?
        }
    };
    fs::write(&file, text)?;
    Ok(!tried.status.success())
}

/// Plays generated workflows on the built copy, until the first defect.
fn play(copy: &Path, args: &[&str]) -> anyhow::Result<Output> {
    let mut command = Command::new(copy.join("target/debug/xtask"));
    command.args(["prove", "resume", "--crashes", "1", "--defects", "1"]).args(args).current_dir(copy);
    command.output().context("cannot start the plays")
}

/// Returns the text of a file without a rule.
fn without(rule: &Rule, text: &str) -> anyhow::Result<String> {
    match text.matches(rule.on).count() {
        1 => Ok(text.replace(rule.on, rule.off)),
        count => {
            bail!("{} has the rule `{}` {count} times instead of once: {}", rule.file, rule.name, rule.on)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{RULES, SOURCES, without};
    use crate::repo;

    #[test]
    fn each_rule_is_once_in_its_file_on_one_line() {
        for rule in &RULES {
            let text = fs::read_to_string(repo::root().join(SOURCES).join(rule.file)).unwrap();

            let mutated = without(rule, &text).unwrap();

            assert_ne!(mutated, text, "{}", rule.name);
            assert_eq!(rule.on.lines().count(), 1, "{}", rule.name);
        }
    }
}
