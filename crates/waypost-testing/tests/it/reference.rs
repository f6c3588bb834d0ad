//! The reference model of recovery has no defects, and each of its rules is needed.

use waypost_testing::reference::play::{Feature, play};
use waypost_testing::reference::{Rule, Rules, Statistics, chains};

/// Seeds of each feature: they run in about a second.
const SEEDS: std::ops::Range<u64> = 0..300;

/// Plays all seeds, and panics with the first defect and the seed.
fn assert_clean(features: &[Feature]) -> Statistics {
    let features = features.iter().copied().collect();
    let mut statistics = Statistics::default();
    for seed in SEEDS {
        let found = play(seed, &features, &Rules::default(), &mut statistics);
        assert!(found.is_empty(), "seed {seed} of {features:?}: {found:#?}");
    }
    assert!(statistics.crashes > 100 && statistics.reused > 100 && statistics.asked > 100, "{statistics:?}");
    statistics
}

#[test]
fn base_workflows_have_no_defects() {
    assert_clean(&[]);
}

#[test]
fn dead_letters_have_no_defects() {
    let statistics = assert_clean(&[Feature::DeadLetters]);

    assert!(statistics.failed > 50, "{statistics:?}");
}

#[test]
fn edits_have_no_defects() {
    assert_clean(&[Feature::Edits]);
}

#[test]
fn failures_have_no_defects() {
    let statistics = assert_clean(&[Feature::Failures]);

    assert!(statistics.failed > 50, "{statistics:?}");
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

    assert!(statistics.plans > 500, "{statistics:?}");
}

#[test]
fn files_edited_in_place_have_no_defects() {
    assert_clean(&[Feature::InPlace]);
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

    assert!(statistics.rejoined > 100 && statistics.asked > 50, "{statistics:?}");
}

/// A rule, and the feature that shows what it is for.
struct Needed {
    rule: Rule,
    features: &'static [Feature],
}

/// Counterexamples appear within so many seeds.
const COUNTEREXAMPLE_SEEDS: u64 = 3000;

#[test]
fn each_rule_of_the_walk_has_a_counterexample() {
    use Feature::{DeadLetters, Edits, Failures, InPlace, Travel};
    let needed = |rule, features| Needed { rule, features };
    let table = [
        needed(Rule::StartTakesReusable, &[]),
        needed(Rule::PassedOverKeepsReusable, &[Failures] as &[Feature]),
        needed(Rule::FailureHasPinDigest, &[Failures]),
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
        needed(Rule::OpenStepDeclares, &[InPlace]),
        needed(Rule::ReuseTakesOpening, &[DeadLetters]),
    ];

    for needed in table {
        let features = needed.features.iter().copied().collect();
        let rules = Rules::without(needed.rule);
        let mut ignored = Statistics::default();
        let mut first = None;
        for seed in 0..COUNTEREXAMPLE_SEEDS {
            let found = play(seed, &features, &rules, &mut ignored);
            if !found.is_empty() {
                first = Some((seed, found));
                break;
            }
        }
        println!("{:?} {:?} {first:?}", needed.rule, needed.features);
    }
    for rule in [
        Rule::ChainPinDigest,
        Rule::ChainBegun,
        Rule::ChainRemembersDiscarded,
        Rule::ChainRetainsHead,
        Rule::ChainPasses,
    ] {
        let mut ignored = Statistics::default();
        let first = (0..COUNTEREXAMPLE_SEEDS).find_map(|seed| {
            let found = chains::play(seed, &Rules::without(rule), &mut ignored);
            (!found.is_empty()).then_some((seed, found))
        });
        println!("{rule:?} {first:?}");
    }
}
