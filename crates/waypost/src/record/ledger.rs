//! The ledger of a position: the ends in force of a scope.
//!
//! Every commit writes the ledger as a JSON object: step to seq for a completed step. The text is kept between commits,
//! and a new end is appended: the cost of a commit does not grow with the encoding of all earlier ends.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::OnceLock;

use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::ser::{Error as _, SerializeStruct as _};
use serde::{Deserialize, Serialize, Serializer};

use super::is_default;
use super::position::Fan;
use super::strict::RAW_VALUE;
use crate::id::StepId;

/// The ends in force, by step.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(from = "BTreeMap<StepId, Settled>")]
pub struct Ledger {
    ends: BTreeMap<StepId, Settled>,
    /// The number of ends without success.
    unsuccessful: usize,
    /// The JSON object of the ends, if the ledger was encoded since the last change other than a new end.
    text: OnceLock<String>,
}

impl PartialEq for Ledger {
    fn eq(&self, other: &Self) -> bool {
        self.ends == other.ends
    }
}

impl Ledger {
    /// Adds the end of a step. Returns the end before.
    pub fn insert(&mut self, step: StepId, settled: Settled) -> Option<Settled> {
        self.unsuccessful += usize::from(settled.is_unsuccessful());
        let text = self.text.take().filter(|_| !self.ends.contains_key(&step));
        let longer = text.and_then(|text| with_end(text, &step, &settled).ok());
        self.text = longer.map_or_else(OnceLock::new, OnceLock::from);
        let before = self.ends.insert(step, settled);
        self.forget(before)
    }

    /// Removes the end of a step.
    pub fn remove(&mut self, step: &StepId) -> Option<Settled> {
        let before = self.ends.remove(step);
        if before.is_some() {
            self.text = OnceLock::new();
        }
        self.forget(before)
    }

    /// Keeps only some ends.
    pub fn retain(&mut self, mut is_kept: impl FnMut(&StepId, &Settled) -> bool) {
        self.ends.retain(|step, settled| is_kept(step, settled));
        self.unsuccessful = unsuccessful(&self.ends);
        self.text = OnceLock::new();
    }

    /// Returns the number of ends without success: failed, or passed over after a failure.
    pub fn unsuccessful(&self) -> usize {
        self.unsuccessful
    }

    fn forget(&mut self, before: Option<Settled>) -> Option<Settled> {
        self.unsuccessful -= usize::from(before.as_ref().is_some_and(Settled::is_unsuccessful));
        before
    }
}

fn unsuccessful(ends: &BTreeMap<StepId, Settled>) -> usize {
    ends.values().filter(|settled| settled.is_unsuccessful()).count()
}

/// Returns the JSON object `text` with another end.
fn with_end(mut text: String, step: &StepId, settled: &Settled) -> Result<String, serde_json::Error> {
    text.pop();
    if text.len() > 1 {
        text.push(',');
    }
    text.push_str(&serde_json::to_string(step)?);
    text.push(':');
    text.push_str(&serde_json::to_string(settled)?);
    text.push('}');
    Ok(text)
}

impl Serialize for Ledger {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = match self.text.get() {
            Some(text) => text,
            None => {
                let text = serde_json::to_string(&self.ends).map_err(S::Error::custom)?;
                self.text.get_or_init(|| text)
            }
        };
        let mut raw = serializer.serialize_struct(RAW_VALUE, 1)?;
        raw.serialize_field(RAW_VALUE, text)?;
        raw.end()
    }
}

impl Deref for Ledger {
    type Target = BTreeMap<StepId, Settled>;

    fn deref(&self) -> &Self::Target {
        &self.ends
    }
}

impl From<BTreeMap<StepId, Settled>> for Ledger {
    fn from(ends: BTreeMap<StepId, Settled>) -> Self {
        let unsuccessful = unsuccessful(&ends);
        Self { ends, unsuccessful, text: OnceLock::new() }
    }
}

impl FromIterator<(StepId, Settled)> for Ledger {
    fn from_iter<I: IntoIterator<Item = (StepId, Settled)>>(ends: I) -> Self {
        BTreeMap::from_iter(ends).into()
    }
}

impl Extend<(StepId, Settled)> for Ledger {
    fn extend<I: IntoIterator<Item = (StepId, Settled)>>(&mut self, ends: I) {
        ends.into_iter().for_each(|(step, settled)| drop(self.insert(step, settled)));
    }
}

/// The end of a step in force: its record, and the children joined there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settled {
    /// How the step ended.
    pub how: SettledAs,
    /// The record of the end.
    pub seq: u64,
    /// Children that ended as failed, in this pass and earlier passes, and tolerated failures in earlier passes.
    pub failures: u64,
    /// The fan-out joined by the end, in a graph with `needs`: its scopes can be entered again without the state of
    /// the time.
    pub fan: Option<Box<Fan>>,
}

/// How a step ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SettledAs {
    /// The step completed.
    Completed,
    /// The step was skipped.
    Skipped,
    /// The step was skipped, by decision of a person.
    SkippedByHand,
    /// The step failed, and the failure was tolerated.
    Tolerated,
    /// The step failed, and the retries are used up.
    Failed,
    /// The step did not run: a step upstream failed.
    PassedOver,
}

impl Settled {
    /// Creates an end without failed children.
    pub fn new(how: SettledAs, seq: u64) -> Self {
        Self { how, seq, failures: 0, fan: None }
    }

    /// Creates the end of a completed step.
    pub fn completed(seq: u64) -> Self {
        Self::new(SettledAs::Completed, seq)
    }

    /// Returns whether the step has a result: it completed, or its failure was tolerated.
    pub fn has_result(&self) -> bool {
        matches!(self.how, SettledAs::Completed | SettledAs::Tolerated)
    }

    /// Returns whether this end counts again if the step receives the same input. A condition decides again about a
    /// skip, and a skip by a person stays.
    pub(crate) fn is_reusable(&self) -> bool {
        self.has_result() || self.how == SettledAs::SkippedByHand
    }

    /// Returns how many failures this end passed: failed children, and a tolerated failure.
    pub(crate) fn failures_passed(&self) -> u64 {
        self.failures + u64::from(self.how == SettledAs::Tolerated)
    }

    /// Returns whether this end fails the run: the step failed, or was passed over after a failure.
    pub fn is_unsuccessful(&self) -> bool {
        matches!(self.how, SettledAs::Failed | SettledAs::PassedOver)
    }

    /// Returns whether the step had an effect: not skipped, and without an empty fan-out.
    pub(crate) fn did(&self) -> bool {
        !matches!(self.how, SettledAs::Skipped | SettledAs::SkippedByHand)
            && self.fan.as_ref().is_none_or(|fan| fan.total > 0)
    }
}

/// The fields of an end that is more than its seq.
#[derive(Serialize)]
struct WrittenEnd<'a> {
    how: SettledAs,
    seq: u64,
    #[serde(skip_serializing_if = "is_default")]
    failures: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    fan: Option<&'a Fan>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadEnd {
    how: SettledAs,
    seq: u64,
    #[serde(default)]
    failures: u64,
    #[serde(default)]
    fan: Option<Box<Fan>>,
}

impl Serialize for Settled {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self { how: SettledAs::Completed, seq, failures: 0, fan: None } => serializer.serialize_u64(*seq),
            Self { how, seq, failures, fan } => {
                WrittenEnd { how: *how, seq: *seq, failures: *failures, fan: fan.as_deref() }
                    .serialize(serializer)
            }
        }
    }
}

impl<'de> Deserialize<'de> for Settled {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(EndVisitor)
    }
}

struct EndVisitor;

impl<'de> Visitor<'de> for EndVisitor {
    type Value = Settled;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the seq of a completed step, or an object with `how` and `seq`")
    }

    fn visit_u64<E: de::Error>(self, seq: u64) -> Result<Settled, E> {
        Ok(Settled::completed(seq))
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Settled, A::Error> {
        let ReadEnd { how, seq, failures, fan } =
            ReadEnd::deserialize(de::value::MapAccessDeserializer::new(fields))?;
        Ok(Settled { how, seq, failures, fan })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::encode;

    /// Changes a ledger by the number of a change.
    fn change(ledger: &mut Ledger, number: u64) {
        let step = StepId::new(["a", "b", "c"][number as usize % 3]).unwrap();
        match number / 3 {
            0 => drop(ledger.insert(step, Settled::completed(number + 1))),
            1 => drop(ledger.insert(step, Settled::new(SettledAs::Failed, number))),
            2 => drop(ledger.remove(&step)),
            3 => ledger.retain(|kept, _| *kept != step),
            _ => drop(encode(ledger, &mut Vec::new())),
        }
    }

    #[test]
    fn the_kept_text_is_the_text_of_the_ends() {
        const CHANGES: u64 = 13;
        for sequence in 0..CHANGES.pow(4) {
            let mut ledger = Ledger::default();
            for at in 0..4 {
                change(&mut ledger, sequence / CHANGES.pow(at) % CHANGES);
            }
            let (mut strict, plain) = (Vec::new(), serde_json::to_vec(&ledger).unwrap());
            encode(&ledger, &mut strict).unwrap();
            assert_eq!(strict, plain);
            let read: Ledger = serde_json::from_slice(&plain).unwrap();
            assert_eq!((&read, read.unsuccessful()), (&ledger, ledger.unsuccessful()), "{sequence}");
            assert_eq!(serde_json::to_value(&ledger).unwrap(), serde_json::to_value(&*ledger).unwrap());
        }
    }

    #[test]
    fn a_new_end_is_appended_to_the_kept_text() {
        let mut ledger = Ledger::default();
        change(&mut ledger, 1);
        let before = serde_json::to_string(&ledger).unwrap();
        change(&mut ledger, 0);
        assert!(serde_json::to_string(&ledger).unwrap().starts_with(&before[..before.len() - 1]));
    }
}
