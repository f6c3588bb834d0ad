//! Rules of the model. Each can be switched off, to show its purpose.

use std::collections::BTreeSet;

/// A rule of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// A start, or the opening of children, removes the reusable end of the step and pass.
    StartTakesReusable,
    /// A skipped or passed-over end keeps the reusable end of its step.
    PassedOverKeepsReusable,
    /// A failed end has a unique pin digest and output digest.
    FailureHasPinDigest,
    /// The input of a child contains neither the definition of its opener nor the list of its siblings.
    InputWithoutSiblings,
    /// A kept definition is a list of accepted versions: it covers reusable ends too.
    AcceptedVersions,
    /// The end with failed evidence stays reusable, and its evidence is verified again.
    CutStaysReusable,
    /// A requested rerun covers the children of openers, at every later pass too.
    RerunWhole,
    /// A dropped end of a non-idempotent step is confirmed by a person and never reused.
    DroppedIsConfirmed,
    /// Rollback: ends of steps begun since the target are invalid.
    BegunSince,
    /// Rollback: the newest execution of a non-idempotent step stays for confirmation.
    ConfirmAfterRollback,
    /// Rollback: reusable ends of the target are restored.
    ReusableOfThen,
    /// A step that edits a file of an upstream step runs after the upstream step has restored the file.
    SharedFileFromUpstream,
    /// The claim of a reusable end that a skipped step should have replaced is verified by a rerun.
    SkippedClaimReruns,
    /// An unfinished step counts as a claimant of its file.
    OpenStepDeclares,
    /// A reused opener takes the number of the last opening of its children.
    ReuseTakesOpening,
    /// A failed attempt is repeated while the retry budget lasts.
    RetryBudget,
    /// A decision to skip a step is recorded before it is applied.
    SkipIsRecorded,
    /// A decision to skip a step holds while the step's inputs are unchanged.
    SkipHoldsForSameInput,
    /// After an item failed, no step of another item starts, if the fan-out stops.
    StopStartsNoItem,
    /// Unverifiable evidence stops the resume.
    UnknownStops,
    /// Chains: a rejoin compares all pins in force, including pins of earlier steps.
    ChainPinDigest,
    /// Chains: a rejoin must not cross a step begun since the chain was set aside.
    ChainBegun,
    /// Chains: non-idempotent steps that ran off the lineage are remembered.
    ChainRemembersDiscarded,
    /// Chains: retention keeps the state of the head of the reusable chain.
    ChainRetainsHead,
    /// Chains: a rejoin compares the number of executions of each downstream step.
    ChainPasses,
}

/// The rules in effect: all except those switched off.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    off: BTreeSet<Rule>,
}

impl Rules {
    /// Returns all rules except `rule`.
    pub fn without(rule: Rule) -> Self {
        Self { off: BTreeSet::from([rule]) }
    }

    /// Returns whether a rule is in effect.
    pub fn on(&self, rule: Rule) -> bool {
        !self.off.contains(&rule)
    }
}
