//! The reference model of recovery has no defects, and each of its rules is needed.

use std::sync::Arc;

use waypost_testing::reference::check::check;
use waypost_testing::reference::definition::{Step, Steps, When};
use waypost_testing::reference::engine::{FailurePolicy, Halt};
use waypost_testing::reference::play::{Feature, play};
use waypost_testing::reference::request::Request;
use waypost_testing::reference::world::Failing;
use waypost_testing::reference::{Engine, Rule, Rules, Statistics, chains};
use waypost_testing::seed::Seeded;

/// Seeds of each feature: they run in about a second.
const SEEDS: std::ops::Range<u64> = 0..120;

/// Plays all seeds, and panics with the first defect and the seed.
fn assert_clean(features: &[Feature]) -> Statistics {
    let features = features.iter().copied().collect();
    let mut statistics = Statistics::default();
    for seed in SEEDS {
        let found = play(seed, &features, &Rules::default(), &mut statistics);
        assert!(found.is_empty(), "seed {seed} of {features:?}: {found:#?}");
    }
    assert!(statistics.crashes > 20 && statistics.reused > 20 && statistics.asked > 20, "{statistics:?}");
    statistics
}

#[test]
fn base_workflows_have_no_defects() {
    assert_clean(&[]);
}

#[test]
fn dead_letters_have_no_defects() {
    let statistics = assert_clean(&[Feature::DeadLetters]);

    assert!(statistics.failed > 20, "{statistics:?}");
}

#[test]
fn edits_have_no_defects() {
    assert_clean(&[Feature::Edits]);
}

#[test]
fn failures_have_no_defects() {
    let statistics = assert_clean(&[Feature::Failures]);

    assert!(statistics.failed > 20, "{statistics:?}");
}

#[test]
fn hooks_have_no_defects() {
    assert_clean(&[Feature::Hooks, Feature::Failures]);
}

#[test]
fn travel_has_no_defects() {
    assert_clean(&[Feature::Travel]);
}

#[test]
fn plans_name_each_step_that_runs() {
    let statistics = assert_clean(&[Feature::Plan]);

    assert!(statistics.plans > 200, "{statistics:?}");
}

#[test]
fn files_edited_in_place_have_no_defects() {
    assert_clean(&[Feature::InPlace]);
}

#[test]
fn retries_have_no_defects() {
    assert_clean(&[Feature::Retries, Feature::Failures]);
}

#[test]
fn skips_by_hand_have_no_defects() {
    assert_clean(&[Feature::Skip, Feature::Travel]);
}

#[test]
fn fan_outs_that_stop_have_no_defects() {
    let statistics = assert_clean(&[Feature::Stop]);

    assert!(statistics.failed > 20, "{statistics:?}");
}

#[test]
fn unknown_evidence_has_no_defects() {
    assert_clean(&[Feature::Unknown]);
}

#[test]
fn several_failing_scopes_have_no_defects() {
    let statistics = assert_clean(&[Feature::Failures, Feature::Scopes]);

    assert!(statistics.failed > 20, "{statistics:?}");
}

#[test]
fn all_features_together_have_no_defects() {
    assert_clean(&Feature::ALL);
}

#[test]
fn chains_have_no_defects() {
    let mut statistics = Statistics::default();

    for seed in SEEDS {
        let found = chains::play(seed, &Rules::default(), &mut statistics);
        assert!(found.is_empty(), "seed {seed} of chains: {found:#?}");
    }

    assert!(statistics.rejoined > 50 && statistics.asked > 20, "{statistics:?}");
}

/// A rule of the walk, and the features that show what it is for.
struct Needed {
    rule: Rule,
    features: &'static [Feature],
}

/// Each rule has a counterexample within so many seeds.
const COUNTEREXAMPLE_SEEDS: u64 = 700;

/// Returns the rules of the walk, each with features that need it. Two more have examples of their own, and a
/// counterexample of `ReuseTakesOpening` takes thousands of seeds.
fn needed_rules() -> Vec<Needed> {
    use Feature::{Edits, Failures, InPlace, Retries, Skip, Stop, Travel, Unknown};
    let needed = |rule, features| Needed { rule, features };
    vec![
        needed(Rule::PassedOverKeepsReusable, &[Failures]),
        needed(Rule::InputWithoutSiblings, &[Edits]),
        needed(Rule::AcceptedVersions, &[Edits]),
        needed(Rule::CutStaysReusable, &[]),
        needed(Rule::RerunWhole, &[Travel]),
        needed(Rule::DroppedIsConfirmed, &[Travel]),
        needed(Rule::BegunSince, &[Travel]),
        needed(Rule::ConfirmAfterRollback, &[Travel]),
        needed(Rule::ReusableOfThen, &[Travel]),
        needed(Rule::SharedFileFromUpstream, &[InPlace]),
        needed(Rule::SkippedClaimReruns, &[Failures, InPlace]),
        needed(Rule::OpenStepDeclares, &Feature::ALL),
        needed(Rule::RetryBudget, &[Retries]),
        needed(Rule::SkipIsRecorded, &[Skip]),
        needed(Rule::SkipHoldsForSameInput, &[Skip]),
        needed(Rule::StopStartsNoItem, &[Stop]),
        needed(Rule::UnknownStops, &[Unknown]),
    ]
}

#[test]
fn each_rule_of_the_walk_has_a_counterexample() {
    for Needed { rule, features } in needed_rules() {
        let features = features.iter().copied().collect();
        let mut statistics = Statistics::default();

        let found = (0..COUNTEREXAMPLE_SEEDS)
            .find(|seed| !play(*seed, &features, &Rules::without(rule), &mut statistics).is_empty());

        assert!(found.is_some(), "{rule:?} is not needed by {features:?}");
    }
}

#[test]
fn each_rule_of_chains_has_a_counterexample() {
    let rules = [
        Rule::ChainPinDigest,
        Rule::ChainBegun,
        Rule::ChainRemembersDiscarded,
        Rule::ChainRetainsHead,
        Rule::ChainPasses,
    ];

    for rule in rules {
        let mut statistics = Statistics::default();

        let found = (0..COUNTEREXAMPLE_SEEDS)
            .find(|seed| !chains::play(*seed, &Rules::without(rule), &mut statistics).is_empty());

        assert!(found.is_some(), "{rule:?} is not needed");
    }
}

/// Returns an engine that goes on after failures, with these rules.
fn engine(steps: impl IntoIterator<Item = Step>, rules: Rules) -> Engine {
    let steps: Steps = steps.into_iter().map(Arc::new).collect();
    Engine::new(steps, FailurePolicy::KeepGoing, rules, Seeded::new(3))
}

/// `a` gives another result, which `d` reads and is interrupted. Then `a` gives the first result again.
fn interrupted_over_another_input(rules: Rules) -> Vec<String> {
    let a = Step { file: Some("A".into()), ..Step::leaf("a") };
    let d = Step { needs: vec!["a".into()], ..Step::leaf("d") };
    let mut engine = engine([a, d], rules);
    engine.resume(&Request::None).unwrap();
    engine.world.hidden.insert("a".into(), 1);
    engine.world.files.clear();
    (engine.commits, engine.crash_at) = (0, Some(4));
    assert_eq!(engine.resume(&Request::None), Err(Halt::Crash));
    engine.crash_at = None;
    engine.world.hidden.clear();
    engine.world.files.clear();

    engine.resume(&Request::None).unwrap();

    check(&engine)
}

/// `a` fails and then does not. `b` gives the same in both cases, and `c` needs only `b`.
fn failure_two_steps_upstream(rules: Rules) -> Vec<String> {
    let a = Step::leaf("a");
    let b = Step { needs: vec!["a".into()], when: When::Always, output_modulus: 1, ..Step::leaf("b") };
    let c = Step { needs: vec!["b".into()], when: When::Always, ..Step::leaf("c") };
    let mut engine = engine([a, b, c], rules);
    engine.world.failing.insert(Failing { step: "a".into(), scope_part: "" });
    engine.resume(&Request::None).unwrap();
    engine.world.failing.clear();

    engine.resume(&Request::None).unwrap();

    check(&engine)
}

#[test]
fn a_start_takes_the_reusable_end() {
    assert_eq!(interrupted_over_another_input(Rules::default()), [""; 0]);
    assert_eq!(interrupted_over_another_input(Rules::without(Rule::StartTakesReusable)), ["main/d is stale"]);
}

#[test]
fn a_failure_counts_for_all_steps_downstream() {
    assert_eq!(failure_two_steps_upstream(Rules::default()), [""; 0]);
    assert_eq!(failure_two_steps_upstream(Rules::without(Rule::FailureHasPinDigest)), ["main/c is stale"]);
}
