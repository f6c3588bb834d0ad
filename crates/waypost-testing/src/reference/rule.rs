//! Rules of the model that can be switched off, one at a time, to show what each is for.

use std::collections::BTreeSet;

/// A rule of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// A start, or the opening of children, removes the reusable end of that step and pass.
    StartTakesReusable,
    /// A skipped or passed-over end keeps the reusable end of its step.
    PassedOverKeepsReusable,
    /// A failed end has a pin digest of its own, as well as an output digest.
    FailureHasPinDigest,
    /// The input of a child contains neither the definition of its opener nor the list of its siblings.
    InputWithoutSiblings,
    /// A kept definition is a list of accepted versions: it covers reusable ends too.
    AcceptedVersions,
    /// The end whose evidence failed stays reusable: its evidence is verified again at its turn.
    CutStaysReusable,
    /// A requested rerun covers the children of openers, at every later pass too.
    RerunWhole,
    /// A dropped end of a step that is not idempotent is confirmed by a person, never reused.
    DroppedIsConfirmed,
    /// Rollback: ends of steps begun since are invalid.
    BegunSince,
    /// Rollback: the newest execution of a step that is not idempotent stays to be confirmed.
    ConfirmAfterRollback,
    /// Rollback: reusable ends of that time come back.
    ReusableOfThen,
    /// A step that edits a file of an upstream step runs after that step has restored it.
    SharedFileFromUpstream,
    /// The claim of a reusable end that a skipped step was to replace is verified by a rerun.
    SkippedClaimReruns,
    /// An unfinished step counts as a declarer of its file.
    OpenStepDeclares,
    /// A reused opener takes the number of the last opening of its children.
    ReuseTakesOpening,
    /// A failed attempt is repeated while the retry budget lasts.
    RetryBudget,
    /// A decision to skip a step is recorded before it is applied.
    SkipIsRecorded,
    /// A decision to skip a step holds while the step is given the same.
    SkipHoldsForSameInput,
    /// No step of another item starts after an item failed, where the fan-out stops.
    StopStartsNoItem,
    /// Evidence that cannot be verified stops the resume.
    UnknownStops,
    /// Chains: a rejoin compares all pins in force, not only those of the last step.
    ChainPinDigest,
    /// Chains: no rejoin over a step that began since the chain was set aside.
    ChainBegun,
    /// Chains: steps that are not idempotent and ran off the lineage are remembered.
    ChainRemembersDiscarded,
    /// Chains: retention keeps the state of the head of the reusable chain.
    ChainRetainsHead,
    /// Chains: a rejoin compares how often each downstream step ran.
    ChainPasses,
}

/// The rules in effect: all but those switched off.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    off: BTreeSet<Rule>,
}

impl Rules {
    /// Returns the rules without one of them.
    pub fn without(rule: Rule) -> Self {
        Self { off: BTreeSet::from([rule]) }
    }

    /// Says whether a rule is in effect.
    pub fn on(&self, rule: Rule) -> bool {
        !self.off.contains(&rule)
    }
}
