//! Documents about what runs wait for.

use serde::Serialize;
use serde_json::Value;
use waypost::record::{FrontierEntry, Wait, WaitKind};

/// Something that is waited for.
#[derive(Debug, Serialize)]
pub(crate) struct WaitView {
    pub(crate) id: String,
    pub(crate) key: String,
    pub(crate) branch: String,
    pub(crate) step: String,
    pub(crate) question: Option<Value>,
    /// What it is; for screens.
    #[serde(skip)]
    pub(crate) on: WaitKind,
}

/// The answer of `answer`.
#[derive(Debug, Serialize)]
pub(crate) struct AnsweredView {
    pub(crate) v: u32,
    pub(crate) run: String,
    pub(crate) id: String,
    pub(crate) branch: String,
    pub(crate) step: String,
    pub(crate) value: Value,
}

/// The answer of `signal`.
#[derive(Debug, Serialize)]
pub(crate) struct SignalledView {
    pub(crate) v: u32,
    pub(crate) run: String,
    pub(crate) name: String,
    pub(crate) value: Value,
}

impl WaitView {
    /// Shows what an entry of a frontier waits for.
    pub(crate) fn of_entry<'a>(branch: &'a str, entry: &'a FrontierEntry) -> impl Iterator<Item = Self> + 'a {
        // Of branches of its own, each says what it waits for.
        let outside = entry.waits.iter().filter(|wait| wait.on != WaitKind::Children);
        outside.map(move |wait| Self::of(branch, entry.step.as_str(), wait))
    }

    /// Shows what a step waits for.
    pub(crate) fn of(branch: &str, step: &str, wait: &Wait) -> Self {
        Self {
            id: wait.id.clone(),
            key: wait.key.clone(),
            branch: branch.to_owned(),
            step: step.to_owned(),
            question: wait.question.clone(),
            on: wait.on.clone(),
        }
    }
}
