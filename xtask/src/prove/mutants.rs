//! Mutation tests of the oracle: switches off the rules of the engine in turn, in a copy of the sources. A
//! play of generated workflows must find a defect each time.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::{output, repo};

/// A rule of the engine and its mutation.
struct Rule {
    name: &'static str,
    file: &'static str,
    on: &'static str,
    off: &'static str,
    /// The level of the plays.
    level: &'static str,
}

/// Rules with a rare counterexample in plays have their own tests, for example `upstream` of the command.
const RULES: [Rule; 11] = [
    Rule {
        name: "a changed file upstream counts for a step that needs it",
        file: "trace.rs",
        on: "needs.insert(need.clone(), scope.digests.get(need)?.both());",
        off: "needs.insert(need.clone(), scope.digests.get(need)?.output);",
        level: "leaves",
    },
    Rule {
        name: "the pins of steps further upstream are part of the pins",
        file: "trace.rs",
        on: "made.children.iter().chain(&above).map(",
        off: "made.children.iter().map(",
        level: "leaves",
    },
    Rule {
        name: "a result is compared before it is reused",
        file: "early_cutoff.rs",
        on: "if let Some(difference) = self.difference(id, candidate, header.trace.as_ref()) {",
        off: "if let Some(difference) = self.difference(id, candidate, header.trace.as_ref()).filter(|_| false) {",
        level: "leaves",
    },
    Rule {
        name: "results downstream of an invalid one stay reusable",
        file: "invalidate.rs",
        on: "keep(position, &step.id, 1, Reusable::ended(settled, fan, false));",
        off: "let _ = (settled, fan);",
        level: "leaves",
    },
    Rule {
        name: "the input of a child is that of the opener",
        file: "trace.rs",
        on: "parts.extend(opener.needs.iter().flat_map(|(step, of)| [step.as_str().as_bytes(), of.as_bytes()]));",
        off: "",
        level: "items",
    },
    Rule {
        name: "the pass before is part of the input of a pass",
        file: "trace.rs",
        on: "        true => Some(scope.digests.get(&step.id)?.both()),",
        off: "        true => None,",
        level: "passes",
    },
    Rule {
        name: "a person is asked about a result that must not be repeated",
        file: "reuse.rs",
        on: "if !retries && !step.idempotent && (was_done || begun.is_some()) {",
        off: "if !retries && !step.idempotent && (was_done || begun.is_some()) && false {",
        level: "leaves",
    },
    Rule {
        name: "the pins in force are part of what a chain compares",
        file: "trace.rs",
        on: "    EndDigests { output, pins }\n}\n\n/// Returns the trace of a join of a chain.",
        off: "    EndDigests { output, pins: no_input().min(pins).max(no_input()) }\n}\n\n/// Returns the trace of a join of a chain.",
        level: "chains",
    },
    Rule {
        name: "the state is part of what a chain compares",
        file: "trace.rs",
        on: "let output = Digest::of_parts([&b\"state\"[..], &state, output.as_bytes()]);",
        off: "let output = Digest::of_parts([&b\"state\"[..], output.as_bytes()]);",
        level: "chains",
    },
    Rule {
        name: "a step begun since the rewind ends the reuse of a chain",
        file: "rewind.rs",
        on: "if next.as_ref() != visits.first() || was_begun {",
        off: "if next.as_ref() != visits.first() || (was_begun && false) {",
        level: "chains",
    },
    Rule {
        name: "a chain asks about steps that were done before a rewind",
        file: "line/doubt.rs",
        on: "comes_next && (!step.idempotent || opens_anew) && chain.asks_about(&visit)",
        off: "comes_next && (!step.idempotent || opens_anew) && chain.asks_about(&visit) && false",
        level: "chains",
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

/// Switches off each rule in turn, and fails if the plays find no defect.
pub(super) fn run(options: &MutantOptions) -> anyhow::Result<()> {
    let copy = tempfile::tempdir()?;
    let root = repo::root();
    let entries = [
        "Cargo.toml",
        "Cargo.lock",
        "crates",
        "xtask",
        "rust-toolchain.toml",
        ".cargo",
        "README.md",
        "examples",
    ];
    for entry in entries.iter().filter(|entry| root.join(entry).exists()) {
        let status = Command::new("cp").arg("-a").arg(root.join(entry)).arg(copy.path()).status()?;
        if !status.success() {
            bail!("cannot copy {entry}");
        }
    }
    let is_wanted = |rule: &&Rule| options.rule.as_ref().is_none_or(|text| rule.name.contains(text.as_str()));
    let mut missed = 0;
    for rule in RULES.iter().filter(is_wanted) {
        let is_caught = catches(rule, copy.path(), &options.seeds)?;
        output::say(format!("{}: {}", if is_caught { "caught" } else { "NOT CAUGHT" }, rule.name));
        missed += usize::from(!is_caught);
    }
    if missed > 0 { bail!("{missed} rules can be switched off, and no play finds a defect") } else { Ok(()) }
}

/// Returns whether a play finds a defect while a rule is switched off.
fn catches(rule: &Rule, copy: &Path, seeds: &str) -> anyhow::Result<bool> {
    let file = copy.join("crates/waypost/src/engine").join(rule.file);
    let text = fs::read_to_string(&file)?;
    if text.matches(rule.on).count() != 1 {
        bail!("{} does not have the rule `{}` once: {}", rule.file, rule.name, rule.on);
    }
    fs::write(&file, text.replace(rule.on, rule.off))?;
    let target = copy.join("target");
    let cargo = |args: &[&str]| {
        let mut command = Command::new("cargo");
        command.args(args).current_dir(copy).env("CARGO_TARGET_DIR", &target).env("RUSTFLAGS", "-Awarnings");
        command
    };
    let built = cargo(&["build", "-q", "--package", "xtask"]).output().context("cannot build")?;
    if !built.status.success() {
        bail!(
            "without the rule `{}` it does not build: {}",
            rule.name,
            String::from_utf8_lossy(&built.stderr)
        );
    }
    let play =
        ["prove", "resume", "--level", rule.level, "--seeds", seeds, "--crashes", "1", "--defects", "1"];
    let played = Command::new(target.join("debug/xtask")).args(play).current_dir(copy).output()?;
    fs::write(&file, text)?;
    Ok(!played.status.success())
}
